package domain

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"spectral/internal/core/check"

	"github.com/google/uuid"
)

// Bounds of a scan.
const (
	MaxSubjectBytes = 200
	MaxFindings     = 200 // kinds in one scan
	MaxOccurrences  = 1_000_000_000
)

// Errors of scans.
var (
	ErrNoScan        = errors.New("there is no such scan in this workspace: start one")
	ErrScanCompleted = errors.New("the scan is completed with other findings: start another scan of its subject")
)

// Finding is what a scan found of one kind.
type Finding struct {
	Kind        string `json:"kind"`        // lower-case words, like broken_link
	Occurrences int64  `json:"occurrences"` // from 1
}

// Findings are the findings of one scan, one per kind, in the order of the kinds. Make them with [NewFindings].
type Findings []Finding

var findingKindForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// NewFindings checks findings and sorts them.
func NewFindings(findings ...Finding) (Findings, error) {
	ordered := slices.SortedFunc(slices.Values(findings), func(a, b Finding) int { return cmp.Compare(a.Kind, b.Kind) })
	var faults []error
	if len(ordered) > MaxFindings {
		faults = append(faults, fmt.Errorf("findings are of %d kinds, the limit is %d", len(ordered), MaxFindings))
	}
	for i, f := range ordered {
		switch {
		case !findingKindForm.MatchString(f.Kind):
			faults = append(faults,
				fmt.Errorf("finding kind is %.80q, must be lower-case words of at most 64 bytes, like broken_link", f.Kind))
		case f.Occurrences < 1 || f.Occurrences > MaxOccurrences:
			faults = append(faults, fmt.Errorf("finding %s has %d occurrences, must be from 1 to %d", f.Kind, f.Occurrences,
				MaxOccurrences))
		case i > 0 && ordered[i-1].Kind == f.Kind:
			faults = append(faults, fmt.Errorf("finding %s is there twice: add its occurrences up", f.Kind))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return ordered, nil
}

// Occurrences returns the sum over all kinds.
func (f Findings) Occurrences() (n int64) {
	for _, finding := range f {
		n += finding.Occurrences
	}
	return n
}

// Scan examines one subject. Make it with [StartScan].
type Scan struct {
	ID        uuid.UUID
	Subject   string // a card or a source: card:harbour
	StartedAt time.Time
	// FinishedAt is zero while the scan is running.
	FinishedAt time.Time
	// Findings are set when the scan is completed.
	Findings Findings
}

// StartScan begins a scan of subject.
func StartScan(id uuid.UUID, subject string, at time.Time) (Scan, error) {
	if err := check.Line("subject", subject, MaxSubjectBytes); err != nil {
		return Scan{}, err
	}
	return Scan{ID: id, Subject: subject, StartedAt: storedTime(at)}, nil
}

// Complete ends the scan with its findings, never before its start, because the clocks of two processes may differ. A
// second call with the same findings changes nothing. The error is [ErrScanCompleted] for other findings.
func (s *Scan) Complete(findings Findings, at time.Time) (changed bool, err error) {
	switch {
	case s.FinishedAt.IsZero():
	case slices.Equal(s.Findings, findings):
		return false, nil
	default:
		return false, ErrScanCompleted
	}
	s.Findings, s.FinishedAt = findings, storedTime(at)
	if s.FinishedAt.Before(s.StartedAt) {
		s.FinishedAt = s.StartedAt
	}
	return true, nil
}

// storedTime returns t with the precision of the database, so that the table and the event agree.
func storedTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// IndexedScan is the last finished scan of a subject, in the search index.
type IndexedScan struct {
	ScanID     uuid.UUID
	Subject    string
	FinishedAt time.Time
	Findings   Findings
}

// Validate returns an error for a scan that is invalid at the time now. NewFindings checks its findings.
func (s IndexedScan) Validate(now time.Time) error {
	return errors.Join(check.ID("scan_id", s.ScanID), check.Line("subject", s.Subject, MaxSubjectBytes),
		check.Time("finished_at", s.FinishedAt, now))
}

// FoundIn is a subject whose last scan found something of the searched kind.
type FoundIn struct {
	Subject     string
	ScanID      uuid.UUID
	FinishedAt  time.Time
	Occurrences int64    // of that kind
	Kinds       []string // of all findings of the scan
	Total       int64    // of all findings
}
