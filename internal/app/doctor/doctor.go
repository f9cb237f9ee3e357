package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/doctordb"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// State is the state of a check or a finding.
type State string

// The states, from the best to the worst.
const (
	Fine     State = "fine"
	Note     State = "note"    // nothing is wrong, but operators should know
	Unknown  State = "unknown" // the check could not be made
	Warning  State = "warning" // it will go wrong unless an operator acts
	Critical State = "critical"
)

// Finding is a problem, with what to do about it. Commands and SQL in Fix are in backticks.
type Finding struct {
	State   State  `json:"state"`
	Problem string `json:"problem"`
	Fix     string `json:"fix"`
}

// Result is the result of one check.
type Result struct {
	Check    string    `json:"check"`
	State    State     `json:"state"`  // the worst of the findings
	Detail   string    `json:"detail"` // the figures looked at; empty where findings say more
	Findings []Finding `json:"findings"`
}

// Report is the report of one pass.
type Report struct {
	Results []Result `json:"checks"`
}

// Worst returns the worst state of the report.
func (r Report) Worst() State {
	worst := Fine
	for _, result := range r.Results {
		worst = worse(worst, result.State)
	}
	return worst
}

var ranks = map[State]int{Fine: 0, Note: 0, Unknown: 1, Warning: 2, Critical: 3}

// worse returns the worse of two states, the first if they are equally bad.
func worse(a, b State) State {
	if ranks[b] > ranks[a] {
		return b
	}
	return a
}

// Config configures a pass.
type Config struct {
	// URL is DATABASE_URL, where workers LISTEN.
	URL string
	// Generation is the one that this build runs as. If it is 0, unknown, then differences between its event types and
	// the registered ones are only notes: another generation's build may have registered them.
	Generation events.Generation
	// Now is this host's clock, which is compared with the database's.
	Now func() time.Time
	// IdleAfter is how long a session may idle in a transaction, SnapshotAfter how long it may hold a snapshot. Zero
	// means one and five minutes.
	IdleAfter, SnapshotAfter time.Duration
	// NotMigrated says that most cannot be checked.
	NotMigrated bool
	// Checks are the names of the checks to make; none means all.
	Checks []string
}

// check examines one subject. It adds what is wrong to the examination, and returns the figures that it looked at.
type check func(context.Context, *examination) (detail string, err error)

// checks in the order in which they are made and shown: a check comes after those that it depends on.
var checks = []struct {
	name string
	run  check
}{
	{"server", server}, {"settings", settings}, {"migrations", migrations}, {"schema", ofThisBuild(schema)},
	{"tables", tables}, {"indexes", indexes}, {"privileges", ofThisBuild(privileges)}, {"logins", ofThisBuild(logins)},
	{"clock", clock}, {"notifications", notifications}, {"queue", notificationQueue}, {"connections", connections},
	{"generations", generations}, {"paused", paused}, {"unhandled", unhandled}, {"channels", channels},
	{"listeners", listeners}, {"leases", leases}, {"failures", failures},
	{"breakers", breakers}, {"operations", operations}, {"retention", retention},
	{"snapshots", snapshots}, {"transactions", transactions}, {"vacuum", vacuum}, {"scale", scale},
	{"partitions", partitions}, {"relay", relay},
}

// Names returns the names of the checks, in their order.
func Names() []string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.name
	}
	return names
}

// checkTimeout bounds one check, so that a lock or a huge table does not hold up the others.
const checkTimeout = 15 * time.Second

// examination is what a running check reads, and what it has found.
type examination struct {
	Config
	facts     *doctordb.Queries
	inspector *operator.Inspector
	findings  []Finding
}

// found adds a finding. Its problem is formatted; its fix is added by [Finding.fix].
func (e *examination) found(state State, problem string, args ...any) *Finding {
	e.findings = append(e.findings, Finding{State: state, Problem: fmt.Sprintf(problem, args...)})
	return &e.findings[len(e.findings)-1]
}

func (f *Finding) fix(format string, args ...any) { f.Fix = fmt.Sprintf(format, args...) }

// Examine makes one pass. It returns an error if the database cannot be examined at all; the report has what a single
// check could not see.
func Examine(ctx context.Context, config Config) (report Report, err error) {
	config.IdleAfter = cmp.Or(config.IdleAfter, time.Minute)
	config.SnapshotAfter = cmp.Or(config.SnapshotAfter, 5*time.Minute)
	inspector, err := operator.NewInspector(config.URL, checkTimeout-time.Second)
	if err != nil {
		return Report{}, err
	}
	defer inspector.Close(context.WithoutCancel(ctx))
	for _, c := range checks {
		if len(config.Checks) > 0 && !slices.Contains(config.Checks, c.name) {
			continue
		}
		if err := inspector.Connect(ctx); err != nil {
			return Report{}, err
		}
		e := &examination{Config: config, inspector: inspector, findings: []Finding{}} // in JSON never null
		report.Results = append(report.Results, e.examine(ctx, c.name, c.run))
		if ctx.Err() != nil {
			return Report{}, ctx.Err()
		}
	}
	return report, nil
}

func (e *examination) examine(ctx context.Context, name string, run check) Result {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	result := Result{Check: name, State: Fine}
	var err error
	if e.facts, err = e.inspector.Facts(ctx); err == nil {
		result.Detail, err = run(ctx, e)
	}
	if err != nil {
		e.failed(err)
	}
	for _, f := range e.findings {
		result.State = worse(result.State, f.State)
	}
	if ranks[result.State] > 0 {
		result.Detail = ""
	}
	result.Findings = e.findings
	return result
}

func (e *examination) failed(err error) {
	if e.NotMigrated && operator.IsMissing(err) {
		e.found(Unknown, "not checked: the database is not migrated").fix("`workers migrate up`")
		return
	}
	f := e.found(Unknown, "the check failed: %s", strings.Join(strings.Fields(err.Error()), " "))
	switch {
	case operator.IsDenied(err):
		f.fix("`workers doctor privileges` shows what the role lacks, if the login is a member of %s; if it is not, grant "+
			"it that role", operator.Role)
	case operator.IsTimeout(err):
		f.fix("run `workers doctor transactions`, which names the session that holds a lock, and then this check again")
	default:
		f.fix("run `workers doctor` again; if the error stays, correct what it says")
	}
}

func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= time.Minute:
		return d.Round(time.Second).String()
	default:
		return d.Round(time.Millisecond).String()
	}
}
