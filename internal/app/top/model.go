package top

import (
	"context"
	"errors"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// Client is what the view asks of the database. [*operator.Client] is one.
type Client interface {
	Live(context.Context) (operator.Live, error)
	Find(context.Context, operator.Filter, operator.Page) (operator.EventPage, error)
	ErrorGroups(context.Context, operator.GroupFilter, time.Duration) (operator.ErrorGroups, error)
	Generations(context.Context, *events.Generation) ([]operator.Generation, error)
	Operations(context.Context, int) ([]operator.Operation, error)
	OperationRows(_ context.Context, id uuid.UUID, outcome string, limit int) ([]operator.OperationRow, error)
	Sessions(context.Context, int) ([]operator.Session, error)
	Show(context.Context, uuid.UUID) ([]operator.Detail, error)
	Explain(context.Context, uuid.UUID) ([]operator.Explanation, error)
	Select(context.Context, operator.Filter, time.Duration) (operator.Selection, error)
	SelectNamed(context.Context, []uuid.UUID, operator.Change) (operator.Selection, error)
	Shown(context.Context, operator.Selection, int) ([]operator.Event, error)
	PreviewReplay(context.Context, operator.Selection, events.Generation, operator.Choice, bool) (operator.Preview, error)
	Apply(context.Context, operator.Selection, operator.Change, operator.Pace) (operator.BulkResult, error)
	BeginOperation(_ context.Context, _ operator.Selection, _ operator.Change, command, plan string,
		_ operator.Course) (uuid.UUID, error)
	Pause(_ context.Context, eventType string, _ events.Generation, by, reason string) error
	Resume(_ context.Context, eventType string, _ events.Generation, by string) error
}

// Options say what is shown, and how.
type Options struct {
	Context   string              // of event types and handlers; empty: all
	Type      string              // empty: all
	ContextOf func(string) string // of an event type
	Every     time.Duration       // between two statements
	By        string              // who acts; empty: the login
	ASCII     bool                // the terminal shows no other characters
	Plain     bool                // it shows no colours
}

// Limits of what is asked. The intervals are those that + and - choose.
const (
	readTimeout   = 2 * time.Second // of a statement that fills the screen
	actTimeout    = 30 * time.Second
	whileBlurred  = 10 * time.Second // between two statements, while another window has the focus
	firstRetry    = 500 * time.Millisecond
	longestRetry  = 10 * time.Second
	quietFor      = 10 // times as long as a statement took, the database has no other one of this view
	listed        = 200
	clockInterval = time.Second
)

var intervals = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second,
	5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute}

// kind is what a page shows.
type kind int

// The views, by their keys, and what opens from them.
const (
	types kind = iota + 1
	handlers
	workers
	groups
	generations
	operations
	tail
	locks
	listing // events that a filter selects
	outcome // events of an operation
	oneEvent
)

// page is a view, or what was opened from it.
type page struct {
	kind   kind
	title  string
	filter operator.Filter // of a listing
	id     uuid.UUID       // of the event or operation

	sort     int // the column, as the user chose it; -1: as it is read
	reversed bool
	selected string // key of the row
	index    int    // of the row, or of the first line
	unfolded bool
}

// ownQuery reports whether [operator.Live] does not have what the page shows.
func (p page) ownQuery() bool { return p.kind >= groups }

// Messages.
type (
	// clock is a tick.
	clock time.Time
	// answer is what the database said: the live figures, or what the page's own query read.
	answer struct {
		page  int // which page asked
		at    time.Time
		took  time.Duration
		isOwn bool
		live  operator.Live
		own   any
		err   error
	}
	// planned is a plan to confirm, done its result.
	planned struct {
		page int // that was open when it was asked for
		plan *plan
		err  error
	}
	done struct {
		text  string
		err   error
		begun bool // an operation
	}
)

// Model is the state of the view. Only messages change it.
type Model struct {
	Options
	client        Client
	ctx           context.Context //nolint:containedctx // that of the program: messages have none
	jitter        func() float64  // from 0 to 1
	width, height int

	now         time.Time // of this machine
	due         time.Time // the next question
	asked       time.Time
	pending     bool
	ownLast     bool // the last question was the page's
	blurred     bool
	frozen      bool
	failure     error // of the last question; nil: it was answered
	failures    int   // in a row
	live        *operator.Live
	liveAt      time.Time // by this machine
	own         any       // what the page's query said; nil: nothing yet
	pages       []page
	opened      int // how many pages were opened, the latest of which may take answers
	filter      string
	filtering   bool
	help        bool
	once        bool // one frame for a script: no keys
	plan        *plan
	note        string
	first, rows int // of the table in the last frame
}

// New returns a Model that asks client until ctx ends.
func New(ctx context.Context, client Client, o Options, now time.Time, jitter func() float64) *Model {
	return &Model{Options: o, client: client, ctx: ctx, jitter: jitter, now: now, due: now, width: 80, height: 24,
		pages: []page{{kind: types, sort: -1}}}
}

// Init begins to ask.
func (m *Model) Init() tea.Cmd { return tea.Batch(m.next(), m.tick()) }

func (m *Model) tick() tea.Cmd {
	return tea.Tick(min(clockInterval, m.Every), func(t time.Time) tea.Msg { return clock(t) })
}

func (m *Model) page() *page { return &m.pages[len(m.pages)-1] }

// show makes pages the ones that are open, and asks for what the last of them shows.
func (m *Model) show(pages ...page) tea.Cmd {
	m.pages, m.own, m.note, m.filter, m.first = pages, nil, "", "", 0
	m.opened++
	m.due, m.pending = m.now, false // the answer to another page is not awaited
	return m.next()
}

// Update takes a message.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case clock:
		m.now = time.Time(msg)
		return m, tea.Batch(m.next(), m.tick())
	case answer:
		m.take(msg)
	case planned:
		if msg.page != m.opened || m.filtering { // the person does something else by now
			return m, nil
		}
		m.plan, m.note = msg.plan, ""
		if msg.err != nil {
			m.note = "no plan: " + m.safe(firstLine(msg.err.Error()))
		}
	case done:
		m.plan, m.due = nil, m.now
		if msg.begun {
			cmd := m.show(page{kind: operations, sort: -1})
			m.note = msg.text
			return m, cmd
		}
		if m.note = msg.text; msg.err != nil {
			m.note = m.safe(firstLine(msg.err.Error()))
		}
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.FocusMsg:
		m.blurred, m.due = false, m.now
	case tea.BlurMsg:
		m.blurred = true
	case tea.ResumeMsg:
		m.now = time.Now()
		m.due = m.now
	case tea.PasteMsg:
		if m.filtering {
			m.filter += firstLine(msg.Content)
		}
	case tea.KeyPressMsg:
		return m, m.press(msg)
	}
	return m, nil
}

// take keeps an answer, and says when the next question is due.
func (m *Model) take(a answer) {
	current := a.page == m.opened
	if !current && (a.isOwn || a.err != nil) { // a page that is closed
		return
	}
	if current {
		m.pending = false
	}
	if a.err != nil && (!a.isOwn || operator.IsUnavailable(a.err)) {
		m.failure = a.err
		wait := min(firstRetry<<min(m.failures, 10), longestRetry)
		m.due = a.at.Add(wait/2 + time.Duration(m.jitter()*float64(wait)/2))
		m.failures++
		return
	}
	m.failure, m.failures = nil, 0
	if current {
		every := m.Every
		if m.blurred {
			every = max(every, whileBlurred)
		}
		m.due = m.asked.Add(max(every, quietFor*a.took))
	}
	switch {
	case a.isOwn && (!m.frozen || m.own == nil):
		if m.own = a.own; a.err != nil {
			m.own = a.err
		}
	case !a.isOwn && !m.frozen:
		scoped := m.Scoped(a.live)
		m.live, m.liveAt = &scoped, a.at
	}
}

// slow reports whether an error says that a statement took too long.
func slow(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || operator.IsTimeout(err) ||
		errors.As(err, new(*operator.TooBroadError))
}

// next asks the database if that is due: for the live figures, or else for what the page shows.
func (m *Model) next() tea.Cmd {
	own := m.page().ownQuery() && m.live != nil && (m.own == nil || !m.ownLast)
	if m.pending || m.now.Before(m.due) || m.frozen && (!own || m.own != nil) {
		return nil
	}
	m.pending, m.asked, m.ownLast = true, m.now, own
	ctx, client, o, p, a := m.ctx, m.client, m.Options, *m.page(), answer{page: m.opened, isOwn: own}
	return func() tea.Msg {
		begun := time.Now()
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		if own {
			a.own, a.err = o.query(ctx, client, p)
		} else {
			a.live, a.err = client.Live(ctx)
		}
		a.at = time.Now()
		a.took = a.at.Sub(begun)
		return a
	}
}
