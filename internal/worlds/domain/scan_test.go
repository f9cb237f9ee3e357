package domain_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/worlds/domain"
)

func findings(t *testing.T, of ...domain.Finding) domain.Findings {
	t.Helper()
	f, err := domain.NewFindings(of...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Each case is a state of a scan, a change, and the result.
func TestScanStates(t *testing.T) {
	t.Parallel()
	broken, stale := findings(t, domain.Finding{Kind: "broken_link", Occurrences: 2}), findings(t,
		domain.Finding{Kind: "stale", Occurrences: 1})
	running := func() domain.Scan {
		s, err := domain.StartScan(uuid.New(), "card:harbour", now)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	must := func(s domain.Scan, changed bool, err error) domain.Scan {
		if err != nil || !changed {
			t.Fatal(changed, err)
		}
		return s
	}
	completed := func() domain.Scan {
		s := running()
		changed, err := s.Complete(broken, now.Add(time.Minute))
		return must(s, changed, err)
	}
	failed := func() domain.Scan {
		s := running()
		changed, err := s.Fail("the source is gone", now.Add(time.Minute))
		return must(s, changed, err)
	}
	complete := func(f domain.Findings) func(*domain.Scan) (bool, error) {
		return func(s *domain.Scan) (bool, error) { return s.Complete(f, now.Add(time.Hour)) }
	}
	fail := func(why string) func(*domain.Scan) (bool, error) {
		return func(s *domain.Scan) (bool, error) { return s.Fail(why, now.Add(time.Hour)) }
	}
	for name, c := range map[string]struct {
		scan    domain.Scan
		do      func(*domain.Scan) (bool, error)
		state   domain.ScanState
		changed bool
		err     error
	}{
		"complete":                {running(), complete(broken), domain.ScanCompleted, true, nil},
		"complete, nothing found": {running(), complete(nil), domain.ScanCompleted, true, nil},
		"fail":                    {running(), fail("no reply"), domain.ScanFailed, true, nil},
		"complete again":          {completed(), complete(broken), domain.ScanCompleted, false, nil},
		"complete with other findings": {completed(), complete(stale), domain.ScanCompleted, false,
			domain.ErrScanCompleted},
		"complete with nothing, instead": {completed(), complete(nil), domain.ScanCompleted, false, domain.ErrScanCompleted},
		"complete a failed one":          {failed(), complete(broken), domain.ScanFailed, false, domain.ErrScanFailed},
		"fail a completed one":           {completed(), fail("late"), domain.ScanCompleted, false, domain.ErrScanCompleted},
		"fail again":                     {failed(), fail("another reason"), domain.ScanFailed, false, nil},
	} {
		before := fmt.Sprint(c.scan)
		changed, err := c.do(&c.scan)
		if changed != c.changed || !errors.Is(err, c.err) || (err != nil) != (c.err != nil) || c.scan.State != c.state {
			t.Errorf("%s: is %s, changed %t, error %v", name, c.scan.State, changed, err)
		}
		if after := fmt.Sprint(c.scan); !changed && before != after {
			t.Errorf("%s: changed %s to %s", name, before, after)
		}
		if want := now.Add(time.Hour); changed && c.scan.FinishedAt != want {
			t.Errorf("%s: finished at %s, want %s", name, c.scan.FinishedAt, want)
		}
	}

	early := running()
	if _, err := early.Complete(nil, now.Add(-time.Hour)); err != nil || early.FinishedAt != now {
		t.Errorf("by a clock behind it finished at %s: %v", early.FinishedAt, err)
	}
	odd := running()
	finished := now.Add(1999).In(time.FixedZone("", 3600))
	if _, err := odd.Complete(nil, finished); err != nil || odd.FinishedAt != now.Add(time.Microsecond) {
		t.Errorf("finished at %s: %v", odd.FinishedAt, err)
	}
	for _, failure := range []string{"", " ", strings.Repeat("x", domain.MaxFailureBytes+1)} {
		s := running()
		if _, err := s.Fail(failure, now); err == nil || s.State != domain.ScanRunning {
			t.Errorf("failed because of %.20q: %v", failure, err)
		}
	}
	for _, subject := range []string{"", "\n", strings.Repeat("x", domain.MaxSubjectBytes+1)} {
		if _, err := domain.StartScan(uuid.New(), subject, now); err == nil {
			t.Errorf("a scan of %.20q", subject)
		}
	}
}

func TestFindingsHaveOneEntryPerKind(t *testing.T) {
	t.Parallel()
	ordered := findings(t, domain.Finding{Kind: "b", Occurrences: 2}, domain.Finding{Kind: "a", Occurrences: 1})
	if got := fmt.Sprint(ordered); got != "[{a 1} {b 2}]" || ordered.Occurrences() != 3 {
		t.Errorf("%s, %d occurrences", got, ordered.Occurrences())
	}
	many := make([]domain.Finding, domain.MaxFindings+1)
	for i := range many {
		many[i] = domain.Finding{Kind: fmt.Sprintf("k%d", i), Occurrences: 1}
	}
	findings(t, many[1:]...)
	for want, of := range map[string][]domain.Finding{
		`finding kind is "", must be lower-case words`: {{Occurrences: 1}},
		`finding kind is "Broken Link", must be lower-case words of at most 64 bytes`: {{Kind: "Broken Link",
			Occurrences: 1}},
		`finding kind is "` + strings.Repeat("x",
			65) + `", must be`: {{Kind: strings.Repeat("x", 65), Occurrences: 1}},
		"finding a has 0 occurrences, must be from 1 to 1000000000": {{Kind: "a"}},
		"finding a has 1000000001 occurrences":                      {{Kind: "a", Occurrences: 1_000_000_001}},
		"finding a is there twice: add its occurrences up": {{Kind: "a", Occurrences: 1},
			{Kind: "b", Occurrences: 1}, {Kind: "a", Occurrences: 1}},
		"findings are of 201 kinds, the limit is 200": many,
	} {
		if _, err := domain.NewFindings(of...); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestInvalidIndexedScansAreRefused(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*domain.IndexedScan){
		"":                       func(*domain.IndexedScan) {},
		"scan_id is missing":     func(s *domain.IndexedScan) { s.ScanID = uuid.Nil },
		"subject is missing":     func(s *domain.IndexedScan) { s.Subject = "" },
		"finished_at is missing": func(s *domain.IndexedScan) { s.FinishedAt = time.Time{} },
		"finished_at is 2027-03-01T12:00:00Z, which is in the future": func(s *domain.IndexedScan) {
			s.FinishedAt = now.AddDate(1, 0, 0)
		},
	} {
		s := domain.IndexedScan{ScanID: uuid.New(), Subject: "card:harbour", FinishedAt: now}
		change(&s)
		if err := s.Validate(now); want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
