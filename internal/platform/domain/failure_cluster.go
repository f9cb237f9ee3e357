package domain

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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

// OtherKind is what failures are counted under once a cluster has as many kinds as it may.
const OtherKind = "other"

// FailureSignature is what the failures of one cluster have in common.
type FailureSignature struct {
	Component  string // that failed
	Operation  string // which it was at
	ErrorClass string
}

// Validate reports what is wrong with a signature.
func (s FailureSignature) Validate() error {
	err := errors.Join(
		textWithin("component", s.Component, 1, MaxSignatureBytes),
		textWithin("operation", s.Operation, 1, MaxSignatureBytes),
		textWithin("error_class", s.ErrorClass, 1, MaxSignatureBytes),
	)
	if strings.ContainsFunc(s.String(), unicode.IsControl) {
		err = errors.Join(err, errors.New("signature has control characters, but is one line"))
	}
	return err
}

// String is the signature in one line, which is all that version 1 of the event had of it.
func (s FailureSignature) String() string {
	return s.Component + "/" + s.Operation + ": " + s.ErrorClass
}

// FailureCount is the failures of one kind.
type FailureCount struct {
	Kind    string
	Count   int64
	Example string // one of them, possibly empty
}

// FailureDetection is what a detector has seen since it looked last.
type FailureDetection struct {
	Signature FailureSignature
	Failures  []FailureCount // at least one
	SeenAt    time.Time
}

// Validate reports what is wrong with a detection.
func (d FailureDetection) Validate() error {
	err := d.Signature.Validate()
	if len(d.Failures) < 1 || len(d.Failures) > MaxFailureKinds {
		err = errors.Join(err, fmt.Errorf("there are %d kinds of failures, must be from 1 to %d", len(d.Failures), MaxFailureKinds))
	}
	for _, f := range d.Failures {
		err = errors.Join(err, textWithin("kind", f.Kind, 1, MaxKindBytes), textWithin("example", f.Example, 0, MaxExampleBytes))
		if f.Count < 1 || f.Count > MaxFailuresPerKind {
			err = errors.Join(err, fmt.Errorf("count is %d, must be from 1 to %d", f.Count, MaxFailuresPerKind))
		}
	}
	if d.SeenAt.IsZero() {
		err = errors.Join(err, errors.New("seen_at is missing"))
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

// NewFailureCluster is the cluster that begins with d.
func NewFailureCluster(id uuid.UUID, d FailureDetection) (FailureCluster, error) {
	return FailureCluster{ID: id, Signature: d.Signature, FirstSeenAt: d.SeenAt, LastSeenAt: d.SeenAt}.Raise(d)
}

// Raise returns the cluster's next revision, with what d has seen added.
func (c FailureCluster) Raise(d FailureDetection) (FailureCluster, error) {
	if err := d.Validate(); err != nil {
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
	of := func(kind string) int {
		return slices.IndexFunc(c.Failures, func(known FailureCount) bool { return known.Kind == kind })
	}
	i := of(f.Kind)
	if i < 0 && len(c.Failures) >= MaxFailureKinds-1 { // the last place is for all others
		f.Kind = OtherKind
		i = of(OtherKind)
	}
	if i < 0 {
		c.Failures = append(c.Failures, f)
		return
	}
	c.Failures[i].Count += f.Count
	if f.Example != "" {
		c.Failures[i].Example = f.Example
	}
}

// Count is the number of failures of every kind.
func (c FailureCluster) Count() int64 {
	n := int64(0)
	for _, f := range c.Failures {
		n += f.Count
	}
	return n
}

// Severity of the cluster. It never falls.
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

// textWithin checks the size of a text, in bytes, and that Postgres can store it.
func textWithin(field, s string, shortest, longest int) error {
	switch {
	case shortest > 0 && strings.TrimSpace(s) == "":
		return fmt.Errorf("%s is missing", field)
	case len(s) > longest:
		return fmt.Errorf("%s has %d bytes, the limit is %d", field, len(s), longest)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return fmt.Errorf("%s is not valid UTF-8, or has a NUL character", field)
	}
	return nil
}
