package events

import (
	"errors"
	"math"
	"time"
)

// RetryPolicy says how often and when a failed handler runs again. Delays have full jitter: a
// random share of a bound that grows with each failure, so that many failures spread out.
type RetryPolicy struct {
	// MaxRetries after the first attempt; zero means never again.
	MaxRetries int
	// Base bounds the first delay.
	Base time.Duration
	// Multiplier grows the bound with each failure, at least 1.
	Multiplier float64
	// Cap bounds every delay.
	Cap time.Duration
}

// DefaultRetryPolicy has 5 retries, a base of 1 s that doubles, a cap of 5 min and full jitter.
var DefaultRetryPolicy = RetryPolicy{MaxRetries: 5, Base: time.Second, Multiplier: 2, Cap: 5 * time.Minute}

// Validate reports what is wrong with a policy.
func (p RetryPolicy) Validate() error {
	switch {
	case p.MaxRetries < 0:
		return errors.New("retry policy: MaxRetries is negative")
	case p.Base <= 0 || p.Cap < p.Base || p.Cap > 24*time.Hour:
		return errors.New("retry policy: want 0 < Base <= Cap <= 24 h")
	case !(p.Multiplier >= 1) || math.IsInf(p.Multiplier, 1):
		return errors.New("retry policy: want a finite Multiplier of at least 1")
	}
	return nil
}

// Exhausted reports whether a handler that failed this often has no retry left.
func (p RetryPolicy) Exhausted(failures int) bool { return failures > p.MaxRetries }

// Delay before the retry that follows the given number of failures, counted from 1. Random is
// uniform in [0,1). The result is within [0, Cap] for any count.
func (p RetryPolicy) Delay(failures int, random float64) time.Duration {
	bound := float64(p.Cap)
	// beyond the cap the power may overflow to +Inf
	if grown := float64(p.Base) * math.Pow(p.Multiplier, float64(max(failures, 1)-1)); grown < bound {
		bound = grown
	}
	return time.Duration(bound * random)
}
