package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/internal/platform/domain"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	"spectral/internal/worlds/application"
)

// Options of a run.
type Options struct {
	// Count ends the run after so many cards; zero means until interrupted or the input ends.
	Count int
	// Input is NDJSON, one card a line; nil means cards made up here.
	Input io.Reader
	// Rate of publishing, cards a second; zero means as fast as one producer can.
	Rate float64
	// Width of the terminal, where one line is redrawn; zero writes a line now and then.
	Width int
}

// Validate reports what is out of range.
func (o Options) Validate() error {
	if o.Count < 0 {
		return fmt.Errorf("--count %d: want a number from 0 on", o.Count)
	}
	if !(o.Rate >= 0 && o.Rate <= 1e6) {
		return fmt.Errorf("--rate %g: want a number from 0 to 1000000", o.Rate)
	}
	return nil
}

// Demo runs on what a worker process has.
type Demo struct {
	Publish    *application.PublishCard
	UnitOfWork *postgres.UnitOfWork
	Pool       *pgxpool.Pool
	Out        io.Writer // the summary
	Err        io.Writer // refused lines
}

const (
	redrawEvery = time.Second
	reportEvery = 2 * time.Second
	lookEvery   = 250 * time.Millisecond // once everything is published
	// arriveWithin is how long the events may take to settle after the last was published, without
	// any of them doing so.
	arriveWithin = 30 * time.Second
)

// ErrNotAllArrived means that a card was refused, failed or did not become a system card in time.
var ErrNotAllArrived = errors.New("not every card arrived")

// run is the state of one run. Its workspace is new, so that the cards are too.
type run struct {
	Demo
	options   Options
	workspace uuid.NullUUID
	since     uuid.UUID
	started   time.Time
	refused   int
	versions  map[string]int64 // published, by card id
	published int
}

// Run publishes until the count, the input or ctx ends, then waits for the cards to arrive.
func (d Demo) Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	since, err := uuid.NewV7()
	if err != nil {
		return err
	}
	r := &run{
		Demo: d, options: o, workspace: uuid.NullUUID{UUID: uuid.New(), Valid: true}, since: since,
		started: time.Now(), versions: make(map[string]int64),
	}
	// Ctx ends the publishing only: what was published is still waited for.
	alive := context.WithoutCancel(ctx)
	ctx, stop := context.WithCancel(ctx)
	published := make(chan error, 1)
	counts := make(chan int, 1)
	go func() { published <- r.publishAll(ctx, alive, counts) }()
	settled, err := r.watch(alive, published, counts)
	stop()
	if !settled { // the database failed under the watch: what is being published ends first
		return errors.Join(err, <-published)
	}
	return err
}

// publishAll publishes one card after the other, reporting how many so far.
func (r *run) publishAll(ctx, alive context.Context, counts chan int) error {
	cards := madeUp()
	if r.options.Input != nil {
		cards = read(r.options.Input)
	}
	var due <-chan time.Time
	if r.options.Rate > 0 {
		ticker := time.NewTicker(max(time.Duration(float64(time.Second)/r.options.Rate), time.Microsecond))
		defer ticker.Stop()
		due = ticker.C
	}
	for c := range interruptible(ctx, cards) {
		if err := r.publishOne(alive, c); err != nil {
			return err
		}
		latest(counts, r.published)
		if r.options.Count > 0 && r.published >= r.options.Count {
			return nil
		}
		if due != nil {
			select {
			case <-due:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// interruptible ends a sequence when ctx does, even while its next element is awaited: standard
// input may never come to an end.
func interruptible(ctx context.Context, cards iter.Seq[card]) iter.Seq[card] {
	return func(yield func(card) bool) {
		next := make(chan card)
		go func() {
			defer close(next)
			for c := range cards {
				select {
				case next <- c:
				case <-ctx.Done():
					return
				}
			}
		}()
		for {
			select {
			case c, ok := <-next:
				if !ok || ctx.Err() != nil || !yield(c) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// latest replaces what the channel of one holds.
func latest(counts chan int, n int) {
	select {
	case <-counts:
	default:
	}
	counts <- n
}

func (r *run) publishOne(ctx context.Context, c card) error {
	err := c.err
	if err == nil {
		var version int64
		if version, err = r.Publish.Publish(ctx, r.workspace, c.WorldModelCard); err == nil {
			r.published++
			r.versions[c.ID()] = version
			return nil
		}
		if !errors.As(err, new(*events.Refusal)) {
			return err
		}
	}
	if c.line == 0 {
		return err
	}
	r.refused++
	_, err = fmt.Fprintf(r.Err, "line %d refused: %s\n", c.line, strings.ReplaceAll(err.Error(), "\n", ", "))
	return err
}

// watch shows the progress until everything published has settled, then the totals. Settled is
// false if it could not watch until then.
func (r *run) watch(ctx context.Context, publishing <-chan error, counts <-chan int) (settled bool, err error) {
	every := reportEvery
	if r.options.Width > 0 {
		every = redrawEvery
	}
	report := time.NewTicker(every)
	defer report.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()

	var failure error
	published, done := 0, false
	before, movedAt := postgres.Progress{}, time.Now()
	for {
		show := false
		select {
		case failure = <-publishing:
			publishing, done, published = nil, true, r.published
		case published = <-counts:
			continue
		case <-report.C:
			show = true
		case <-look.C:
			if !done {
				continue
			}
		}
		progress, err := postgres.ReadProgress(ctx, r.Pool, r.workspace.UUID, r.since)
		if err != nil {
			return done, errors.Join(failure, err)
		}
		if progress.Delivered+progress.Failed != before.Delivered+before.Failed || !done {
			before, movedAt = progress, time.Now()
		}
		if show {
			if err := r.show(ctx, published, progress); err != nil {
				return done, errors.Join(failure, err)
			}
		}
		if done && (progress.Settled() && progress.Published == published || time.Since(movedAt) > arriveWithin) {
			return true, errors.Join(failure, r.totals(ctx, progress))
		}
	}
}

func (r *run) show(ctx context.Context, published int, p postgres.Progress) error {
	card, err := latestCard(ctx, r.UnitOfWork, r.workspace)
	if err != nil {
		return err
	}
	line := fmt.Sprintf("published %d  delivered %d  failed %d  p50 %s  p99 %s  %s",
		published, p.Delivered, p.Failed, milliseconds(p.P50), milliseconds(p.P99), describe(card))
	if r.options.Width > 0 {
		// a line that wraps could not be redrawn
		runes := []rune(line)
		line = "\r\x1b[K" + string(runes[:min(len(runes), r.options.Width-1)])
	} else {
		line += "\n"
	}
	_, err = io.WriteString(r.Out, line)
	return err
}

// describe names a card; nothing if there is none.
func describe(card domain.SystemCard) string {
	if card.CardID == "" {
		return ""
	}
	return fmt.Sprintf("%s v%d %q", card.CardID, card.Version, card.Title)
}

func latestCard(ctx context.Context, u *postgres.UnitOfWork, workspace uuid.NullUUID) (card domain.SystemCard, err error) {
	err = u.Do(ctx, events.Platform, workspace, func(tx events.Tx, _ events.PublisherFor) error {
		card, err = platformpg.NewSystemCards(tx).Latest(ctx, workspace)
		return err
	})
	return card, err
}

// totals are the last lines: what was published and what came of it, checked against the cards
// that platform now has.
func (r *run) totals(ctx context.Context, p postgres.Progress) error {
	var arrived map[string]int64
	err := r.UnitOfWork.Do(ctx, events.Platform, r.workspace, func(tx events.Tx, _ events.PublisherFor) (err error) {
		arrived, err = platformpg.NewSystemCards(tx).Versions(ctx, r.workspace)
		return err
	})
	if err != nil {
		return err
	}
	current := 0
	for id, version := range r.versions {
		if arrived[id] == version {
			current++
		}
	}
	start := ""
	if r.options.Width > 0 {
		start = "\r\x1b[K"
	}
	card, err := latestCard(ctx, r.UnitOfWork, r.workspace)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(r.Out, "%s"+`published  %s in %s, each in a transaction of worlds
delivered  %s, %d failed, %d still waiting
arrived    %d of %d cards stand in platform.system_cards at the version published last
latency    p50 %s, p99 %s from publication to the handled event, by the database clock
`, start, app.Counted(r.published, "world model card version"), time.Since(r.started).Round(10*time.Millisecond), app.Counted(p.Delivered, "event"), p.Failed, p.Published-p.Delivered-p.Failed,
		current, len(r.versions), milliseconds(p.P50), milliseconds(p.P99))
	if err == nil && card.CardID != "" {
		_, err = fmt.Fprintf(r.Out, "latest     %s\n", describe(card))
	}
	if err == nil && r.refused > 0 {
		_, err = fmt.Fprintf(r.Out, "refused    %s of the input\n", app.Counted(r.refused, "line"))
	}
	switch {
	case err != nil:
		return err
	case p.Delivered != r.published || current != len(r.versions):
		return fmt.Errorf("%w: %d of %s delivered, %s refused", ErrNotAllArrived, p.Delivered, app.Counted(r.published, "event"), app.Counted(r.refused, "line"))
	case r.refused > 0:
		return fmt.Errorf("%w: refused %s of the input", ErrNotAllArrived, app.Counted(r.refused, "line"))
	case r.published == 0 && r.options.Input != nil:
		_, err = fmt.Fprintln(r.Out, "there were no cards in the input")
	}
	return err
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
