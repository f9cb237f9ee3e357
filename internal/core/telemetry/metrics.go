package telemetry

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
)

// Names of metrics. Those of messaging.* are OpenTelemetry's semantic conventions for messaging.
const (
	Published      = "messaging.client.sent.messages"
	Claimed        = "messaging.client.consumed.messages"
	HandleDuration = "messaging.process.duration"
	Handled        = "spectral.events.handled"
	Settled        = "spectral.events.settled"
	Reaped         = "spectral.events.reaped"
	Relayed        = "spectral.events.relayed"
	Swept          = "spectral.rows.swept"
	PickupDuration = "spectral.pickup.duration"
	BatchSize      = "spectral.batch.size"
	Notifications  = "spectral.listener.notifications"
	Reconnects     = "spectral.listener.reconnects"
	SilentCommits  = "spectral.listener.silent_commits"
	Refusals       = "spectral.barrier.refusals"
)

// instruments are the metrics that this package counts. Each one is in docs/telemetry.md.
type instruments struct {
	published, claimed, handled, settled, relayed metric.Int64Counter
	reaped, swept                                 metric.Int64Counter
	notifications, reconnects, silent, refusals   metric.Int64Counter
	handling, pickup                              metric.Float64Histogram
	batch                                         metric.Int64Histogram
}

// seconds are the buckets of durations, from a millisecond.
var seconds = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300}

func newInstruments(m metric.Meter) (i instruments, err error) {
	var errs []error
	counter := func(to *metric.Int64Counter, name, unit, about string) {
		*to, err = m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
		errs = append(errs, err)
	}
	duration := func(to *metric.Float64Histogram, name, about string) {
		*to, err = m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about),
			metric.WithExplicitBucketBoundaries(seconds...))
		errs = append(errs, err)
	}
	counter(&i.published, Published, "{event}", "Events that this process has inserted.")
	counter(&i.claimed, Claimed, "{event}", "Events that this worker has claimed.")
	counter(&i.handled, Handled, "{event}", "Calls of handlers that succeeded, for each event.")
	counter(&i.settled, Settled, "{event}", "Outcomes that this worker has committed.")
	counter(&i.relayed, Relayed, "{event}", "Events that this worker has sent to a broker.")
	counter(&i.reaped, Reaped, "{event}", "Events of dead workers and expired leases that this worker reaped.")
	counter(&i.swept, Swept, "{row}", "Rows past their retention that this worker marked or deleted.")
	counter(&i.notifications, Notifications, "{notification}", "Notifications that this worker has received.")
	counter(&i.reconnects, Reconnects, "{connection}", "LISTEN connections that this worker has opened after the first.")
	counter(&i.silent, SilentCommits, "{poll}", "Polls that found due events without a notification.")
	counter(&i.refusals, Refusals, "{refusal}", "Times that a producer's commit kept a poll waiting at the barrier.")
	duration(&i.handling, HandleDuration, "Time that a call of a handler took.")
	duration(&i.pickup, PickupDuration, "Time from when an event was due until this worker claimed it.")
	i.batch, err = m.Int64Histogram(BatchSize, metric.WithUnit("{event}"), metric.WithDescription(
		"Events in a claim that found any."), metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
	return i, errors.Join(append(errs, err)...)
}
