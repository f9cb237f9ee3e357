package domain

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Bounds of a scan.
const (
	MaxSubjectBytes = 200
	MaxFailureBytes = 2000
	MaxFindings     = 200 // kinds in one scan
	MaxOccurrences  = 1_000_000_000
)

// ScanState is how far a scan is: completed and failed are for good.
//
//	running ──> completed
//	   └──────> failed
type ScanState string

// The states of a scan.
const (
	ScanRunning   ScanState = "running"
	ScanCompleted ScanState = "completed"
	ScanFailed    ScanState = "failed"
)

// What a scan refuses.
var (
	ErrNoScan        = errors.New("there is no such scan in this workspace: start one")
	ErrScanCompleted = errors.New("the scan is completed with another result, which stands: start another scan of its subject")
	ErrScanFailed    = errors.New("the scan has failed for good: start another scan of its subject")
)

// Finding is what a scan found of one kind.
type Finding struct {
	Kind        string `json:"kind"`        // lower-case words, like broken_link
	Occurrences int64  `json:"occurrences"` // from 1
}

// Findings are those of one scan, one of each kind, in the order of their kinds. Make them with [NewFindings].
type Findings []Finding

var findingKindForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// NewFindings checks findings and puts them in order.
func NewFindings(findings ...Finding) (Findings, error) {
	ordered := slices.SortedFunc(slices.Values(findings), func(a, b Finding) int { return cmp.Compare(a.Kind, b.Kind) })
	var faults []error
	if len(ordered) > MaxFindings {
		faults = append(faults, fmt.Errorf("findings are of %d kinds, the limit is %d", len(ordered), MaxFindings))
	}
	for i, f := range ordered {
		switch {
		case !findingKindForm.MatchString(f.Kind):
			faults = append(faults, fmt.Errorf("finding kind is %.80q, must be lower-case words of at most 64 bytes, like broken_link", f.Kind))
		case f.Occurrences < 1 || f.Occurrences > MaxOccurrences:
			faults = append(faults, fmt.Errorf("finding %s has %d occurrences, must be from 1 to %d", f.Kind, f.Occurrences, MaxOccurrences))
		case i > 0 && ordered[i-1].Kind == f.Kind:
			faults = append(faults, fmt.Errorf("finding %s is there twice: add its occurrences up", f.Kind))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return ordered, nil
}

// Occurrences of all kinds together.
func (f Findings) Occurrences() (n int64) {
	for _, finding := range f {
		n += finding.Occurrences
	}
	return n
}

// Scan looks through one subject for what should be known of it. Make it with [StartScan].
type Scan struct {
	ID        uuid.UUID
	Subject   string // a card or a source: card:harbour
	State     ScanState
	StartedAt time.Time
	// FinishedAt is zero while the scan is running.
	FinishedAt time.Time
	// Findings of a completed scan.
	Findings Findings
	// Failure says why a failed scan has failed.
	Failure string
}

// StartScan begins a scan of subject.
func StartScan(id uuid.UUID, subject string, at time.Time) (Scan, error) {
	if err := checkLine("subject", subject, MaxSubjectBytes); err != nil {
		return Scan{}, err
	}
	return Scan{ID: id, Subject: subject, State: ScanRunning, StartedAt: storedTime(at)}, nil
}

// Complete ends the scan with its findings. Doing so again with the same ones changes nothing; with others it is
// refused with [ErrScanCompleted], as [ErrScanFailed] is for a scan that has failed.
func (s *Scan) Complete(findings Findings, at time.Time) (changed bool, err error) {
	switch {
	case s.State == ScanFailed:
		return false, ErrScanFailed
	case s.State == ScanCompleted && !slices.Equal(s.Findings, findings):
		return false, ErrScanCompleted
	case s.State == ScanCompleted:
		return false, nil
	}
	s.State, s.Findings = ScanCompleted, findings
	s.finish(at)
	return true, nil
}

// Fail ends the scan without a result. A scan that has failed already keeps its first reason; one that is completed
// refuses with [ErrScanCompleted].
func (s *Scan) Fail(failure string, at time.Time) (changed bool, err error) {
	if strings.TrimSpace(failure) == "" {
		return false, errors.New("failure is missing: say why the scan failed")
	}
	if err := checkProse("failure", failure, MaxFailureBytes); err != nil {
		return false, err
	}
	switch s.State {
	case ScanCompleted:
		return false, ErrScanCompleted
	case ScanFailed:
		return false, nil
	default:
	}
	s.State, s.Failure = ScanFailed, failure
	s.finish(at)
	return true, nil
}

// finish never ends a scan before its start: the clocks of two processes may differ.
func (s *Scan) finish(at time.Time) {
	s.FinishedAt = storedTime(at)
	if s.FinishedAt.Before(s.StartedAt) {
		s.FinishedAt = s.StartedAt
	}
}

// storedTime has the precision of what is stored, so that the table and the event say the same.
func storedTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// IndexedScan is the scan of a subject that finished last, as it can be searched for.
type IndexedScan struct {
	ScanID     uuid.UUID
	Subject    string
	FinishedAt time.Time
	Findings   Findings
}

// Validate reports what is wrong with a scan that is known of at now. Its findings are checked as they are made.
func (s IndexedScan) Validate(now time.Time) error {
	return errors.Join(
		checkID("scan_id", s.ScanID), checkLine("subject", s.Subject, MaxSubjectBytes), checkTime("finished_at", s.FinishedAt, now))
}

// FoundIn is a subject whose last scan found something of the kind that was searched for.
type FoundIn struct {
	Subject     string
	ScanID      uuid.UUID
	FinishedAt  time.Time
	Occurrences int64 // of that kind
	// Kinds and Total are of all that the scan found.
	Kinds []string
	Total int64
}
