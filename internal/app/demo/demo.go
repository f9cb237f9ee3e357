package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"golang.org/x/time/rate"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/platform/domain"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	"spectral/internal/worlds/application"
)

// Options are the options of a run.
type Options struct {
	// Count ends the run after so many cards; zero means until interrupted or the input ends.
	Count int
	// Input is NDJSON, one card per line. Nil means made-up cards.
	Input io.Reader
	// Rate is how many cards to publish per second; zero means as many as one producer can.
	Rate float64
}

// Demo publishes cards and runs flows with the parts of a worker process.
type Demo struct {
	Publish    *application.PublishCard
	UnitOfWork *publish.UnitOfWork
	Pool       *pgxpool.Pool
	Metrics    prometheus.Gatherer     // of this process
	Spans      *tracetest.SpanRecorder // of this process; nil: they are not kept
	Out        io.Writer               // the summary; the caller notes what cannot be written
	Err        io.Writer               // refused lines
}

const (
	reportEvery = 2 * time.Second
	pollEvery   = 250 * time.Millisecond
	// arriveWithin is how long Run waits for another event to settle, after the last one was published.
	arriveWithin = 30 * time.Second
)

var errNotAllArrived = errors.New("not every card arrived")

// run is the state of one run. It has a new workspace, so its cards are new too.
type run struct {
	*Stage
	options   Options
	started   time.Time
	refused   int
	versions  map[string]int64 // published, by card id
	published atomic.Int64
}

// Run publishes until the count, the input or ctx ends, then waits for the cards to arrive.
func (d Demo) Run(ctx context.Context, o Options) error {
	r := &run{Stage: d.stage(), options: o, started: time.Now(), versions: make(map[string]int64)}
	alive := context.WithoutCancel(ctx) // ctx ends the publishing; the published cards still arrive
	publishing, end := context.WithCancel(ctx)
	defer end()
	reporting, stop := context.WithCancel(alive)
	var reports sync.WaitGroup
	reports.Go(func() { r.report(reporting, end) })
	publishErr := r.publishAll(publishing, alive)
	progress, err := r.awaitSettled(alive)
	stop()
	reports.Wait()
	if err == nil {
		err = r.totals(alive, progress)
	}
	return errors.Join(publishErr, err)
}

// publishAll publishes one card after another. It ends when ctx ends, even while it waits for a line of standard input.
func (r *run) publishAll(ctx, alive context.Context) error {
	cards, pace := madeUp(), rate.Inf
	if r.options.Input != nil {
		cards = read(r.options.Input)
	}
	if r.options.Rate > 0 {
		pace = rate.Limit(r.options.Rate)
	}
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
	limiter := rate.NewLimiter(pace, 1)
	for r.options.Count == 0 || r.published.Load() < int64(r.options.Count) {
		if limiter.Wait(ctx) != nil {
			return nil //nolint:nilerr // ctx has ended
		}
		select {
		case c, ok := <-next:
			if !ok {
				return nil
			}
			if err := r.publishOne(alive, c); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func (r *run) publishOne(ctx context.Context, c card) error {
	err := c.err
	if err == nil {
		var version int64
		if version, err = r.Publish.Publish(ctx, r.Workspace, c.WorldModelCard); err == nil {
			r.published.Add(1)
			r.versions[c.ID] = version
			return nil
		}
		if !errors.As(err, new(*events.Refusal)) {
			return err
		}
	}
	r.refused++
	_, err = fmt.Fprintf(r.Err, "line %d refused: %s\n", c.line, strings.ReplaceAll(err.Error(), "\n", ", "))
	return err
}

func (r *run) progress(ctx context.Context) (operator.Progress, error) {
	return operator.New(r.Pool).Progress(ctx, r.Workspace.UUID, r.since)
}

// awaitSettled waits until all published events have settled, or none has for arriveWithin.
func (r *run) awaitSettled(ctx context.Context) (operator.Progress, error) {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	settled, movedAt := 0, time.Now()
	for {
		p, err := r.progress(ctx)
		if p.Delivered+p.Failed != settled {
			settled, movedAt = p.Delivered+p.Failed, time.Now()
		}
		if err != nil || p.Settled() || time.Since(movedAt) > arriveWithin {
			return p, err
		}
		<-poll.C
	}
}

// report shows the progress until ctx ends. If that cannot be written it calls end. An error of reading skips one
// report.
func (r *run) report(ctx context.Context, end func()) {
	due := time.NewTicker(reportEvery)
	defer due.Stop()
	for {
		select {
		case <-due.C:
		case <-ctx.Done():
			return
		}
		p, err := r.progress(ctx)
		card, cardErr := r.latestCard(ctx)
		if err != nil || cardErr != nil {
			continue
		}
		if _, err := fmt.Fprintf(r.Out, "published %d  delivered %d  failed %d  p50 %s  p99 %s  %s\n", r.published.Load(),
			p.Delivered, p.Failed, milliseconds(p.P50), milliseconds(p.P99), describe(card)); err != nil {
			end()
		}
	}
}

// describe returns one line about a card, or nothing for the zero card.
func describe(card domain.SystemCard) string {
	if card.CardID == "" {
		return ""
	}
	return fmt.Sprintf("%s v%d %q", card.CardID, card.Version, card.Title)
}

// totals writes the last lines: what was published and delivered, and which cards platform has.
func (r *run) totals(ctx context.Context, p operator.Progress) error {
	arrived, err := inContext(ctx, r.Stage, events.Platform, func(tx events.Tx) (map[string]int64, error) {
		return platformpg.NewSystemCards(tx).Versions(ctx, r.Workspace)
	})
	card, cardErr := r.latestCard(ctx)
	if err := errors.Join(err, cardErr); err != nil {
		return err
	}
	current := 0
	for id, version := range r.versions {
		if arrived[id] == version {
			current++
		}
	}
	var out strings.Builder
	published, refused := int(r.published.Load()), operator.Counted(r.refused, "line")
	fmt.Fprintf(&out, `published  %s in %s, each in a transaction of worlds
delivered  %s, %d failed, %d still waiting
arrived    %d of %d cards are in platform.system_cards at their latest version
latency    p50 %s, p99 %s from publication to the handled event, by the database clock
`, operator.Counted(published, "world model card version"), time.Since(r.started).Round(10*time.Millisecond),
		operator.Counted(p.Delivered, "event"), p.Failed, p.Published-p.Delivered-p.Failed,
		current, len(r.versions), milliseconds(p.P50), milliseconds(p.P99))
	if card.CardID != "" {
		fmt.Fprintf(&out, "latest     %s\n", describe(card))
	}
	if r.refused > 0 {
		fmt.Fprintf(&out, "refused    %s of the input\n", refused)
	}
	_, _ = io.WriteString(r.Out, out.String())
	if p.Delivered != published || current != len(r.versions) || r.refused > 0 {
		return fmt.Errorf("%w: %d of %s delivered, %s refused",
			errNotAllArrived, p.Delivered, operator.Counted(published, "event"), refused)
	}
	return nil
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
