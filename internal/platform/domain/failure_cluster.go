package domain

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"spectral/internal/core/check"

	"github.com/google/uuid"
)

// Bounds of failure clusters.
const (
	MaxSignatureBytes  = 200 // of each part
	MaxKindBytes       = 200
	MaxExampleBytes    = 2000
	MaxFailureKinds    = 50
	MaxFailuresPerKind = 1_000_000_000 // in one detection
)

// OtherKind counts the failures of all kinds beyond MaxFailureKinds.
const OtherKind = "other"

// FailureSignature is what the failures of one cluster have in common.
type FailureSignature struct {
	Component  string // what failed
	Operation  string // what it was doing
	ErrorClass string
}

// Validate returns an error for a signature that is invalid.
func (s FailureSignature) Validate() error {
	return errors.Join(check.Line("component", s.Component, MaxSignatureBytes),
		check.Line("operation", s.Operation, MaxSignatureBytes),
		check.Line("error_class", s.ErrorClass, MaxSignatureBytes))
}

// String returns the signature in one line, the form of version 1 of the event.
func (s FailureSignature) String() string {
	return s.Component + "/" + s.Operation + ": " + s.ErrorClass
}

// FailureCount is the failures of one kind.
type FailureCount struct {
	Kind    string `json:"kind"`
	Count   int64  `json:"count"`
	Example string `json:"example"` // one message, possibly empty
}

// FailureDetection is what a detector has found since its last report.
type FailureDetection struct {
	Signature FailureSignature
	Failures  []FailureCount // at least one
	SeenAt    time.Time
}

// Validate returns an error for a detection that is invalid at the time now.
func (d FailureDetection) Validate(now time.Time) error {
	err := errors.Join(d.Signature.Validate(), check.Time("seen_at", d.SeenAt, now),
		check.Range("number of kinds of failures", int64(len(d.Failures)), 1, MaxFailureKinds))
	for _, f := range d.Failures {
		err = errors.Join(err, check.Text("kind", f.Kind, true, MaxKindBytes),
			check.Text("example", f.Example, false, MaxExampleBytes), check.Range("count", f.Count, 1, MaxFailuresPerKind))
	}
	return err
}

// Severity says how bad a cluster is.
type Severity string

// The severities, by the number of failures.
const (
	LowSeverity      Severity = "low"      // below 10
	MediumSeverity   Severity = "medium"   // below 100
	HighSeverity     Severity = "high"     // below 1,000
	CriticalSeverity Severity = "critical" // more
)

// FailureCluster is the failures of one signature in one workspace. It only grows; each detection raises its
// revision. Make it with [NewFailureCluster].
type FailureCluster struct {
	ID          uuid.UUID
	Signature   FailureSignature
	Revision    int64          // from 1
	Failures    []FailureCount // by kind, each once
	FirstSeenAt time.Time
	LastSeenAt  time.Time
}

// NewFailureCluster returns the cluster that begins with d, at the time now.
func NewFailureCluster(id uuid.UUID, d FailureDetection, now time.Time) (FailureCluster, error) {
	return FailureCluster{ID: id, Signature: d.Signature, FirstSeenAt: d.SeenAt, LastSeenAt: d.SeenAt}.Raise(d, now)
}

// Raise returns the cluster's next revision with the failures of d added, at the time now.
func (c FailureCluster) Raise(d FailureDetection, now time.Time) (FailureCluster, error) {
	if err := d.Validate(now); err != nil {
		return FailureCluster{}, err
	}
	if d.Signature != c.Signature {
		return FailureCluster{}, fmt.Errorf("the detection is of %s, the cluster of %s", d.Signature, c.Signature)
	}
	c.Failures = slices.Clone(c.Failures)
	for _, f := range d.Failures {
		c.count(f)
	}
	slices.SortFunc(c.Failures, func(a, b FailureCount) int { return strings.Compare(a.Kind, b.Kind) })
	if d.SeenAt.Before(c.FirstSeenAt) {
		c.FirstSeenAt = d.SeenAt
	}
	if d.SeenAt.After(c.LastSeenAt) {
		c.LastSeenAt = d.SeenAt
	}
	c.Revision++
	return c, nil
}

func (c *FailureCluster) count(f FailureCount) {
	same := func(known FailureCount) bool { return known.Kind == f.Kind }
	if len(c.Failures) >= MaxFailureKinds-1 && !slices.ContainsFunc(c.Failures, same) {
		f.Kind = OtherKind // the last place is for all other kinds
	}
	i := slices.IndexFunc(c.Failures, same)
	if i < 0 {
		c.Failures = append(c.Failures, f)
		return
	}
	c.Failures[i].Count += f.Count
	c.Failures[i].Example = cmp.Or(f.Example, c.Failures[i].Example)
}

// Count returns the number of all failures.
func (c FailureCluster) Count() (n int64) {
	for _, f := range c.Failures {
		n += f.Count
	}
	return n
}

// Severity returns the severity for the number of failures. It never falls.
func (c FailureCluster) Severity() Severity {
	switch n := c.Count(); {
	case n < 10:
		return LowSeverity
	case n < 100:
		return MediumSeverity
	case n < 1000:
		return HighSeverity
	default:
		return CriticalSeverity
	}
}
