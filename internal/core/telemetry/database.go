package telemetry

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Names of metrics that are read from the database, by each worker for itself.
const (
	Backlog       = "spectral.backlog"
	BacklogAge    = "spectral.backlog.age"
	Quarantined   = "spectral.events.quarantined"
	OpenBreakers  = "spectral.breakers.open"
	Expiring      = "spectral.events.expiring"
	Replayed      = "spectral.events.replayed"
	LeasesOverdue = "spectral.leases.overdue"
	RowsOverdue   = "spectral.rows.overdue"
	Rows          = "spectral.outbox.rows"
	Partitions    = "spectral.outbox.partitions"
	LatencyP99    = "spectral.latency.p99"
	QueueUsage    = "spectral.notification_queue.usage"
	SnapshotIDs   = "spectral.snapshot.transactions"
	SnapshotAge   = "spectral.snapshot.age"
	ReadAge       = "spectral.database.read_age"
)

// Attributes of a backlog. The status is due, paused, scheduled, in_flight, relayed or failed; failed events
// have no generation.
const (
	Status          = attribute.Key("spectral.status")
	EventGeneration = attribute.Key("spectral.event.generation")
)

// Value is what the database says of a metric.
type Value struct {
	Metric     string
	EventType  string // of a backlog
	Generation int64  // the same; zero for none
	Status     string // the same
	Value      float64
}

// readFor is for how long values are shown: longer than it takes to read them twice.
const readFor = 90 * time.Second

// reading is what was read at once.
type reading struct {
	at     time.Time
	values []Value
}

// database shows what was read last.
type database struct {
	since time.Time
	last  atomic.Pointer[reading]
}

// Read takes in the values of the database's metrics, all of them. Of backlogs, the types that this process knows have
// separate series.
func (t *Telemetry) Read(values []Value) {
	var shown []Value
	others := make(map[Value]int) // the place of the other types' value
	for _, v := range values {
		if v.EventType == "" || t.types[v.EventType] {
			shown = append(shown, v)
			continue
		}
		key := Value{Metric: v.Metric, EventType: Other, Generation: v.Generation, Status: v.Status}
		place, ok := others[key]
		if !ok {
			place = len(shown)
			others[key] = place
			shown = append(shown, key)
		}
		if v.Metric == BacklogAge {
			shown[place].Value = math.Max(shown[place].Value, v.Value)
		} else {
			shown[place].Value += v.Value
		}
	}
	t.last.Store(&reading{time.Now(), shown})
}

// observe adds the metrics of the database to m.
func (d *database) observe(m metric.Meter) error {
	var errs []error
	of := func(name string) metric.Float64Callback {
		return func(_ context.Context, o metric.Float64Observer) error {
			last := d.last.Load()
			if last == nil || time.Since(last.at) > readFor {
				return nil
			}
			for _, v := range last.values {
				switch {
				case v.Metric != name:
				case v.EventType == "":
					o.Observe(v.Value)
				default:
					of := []attribute.KeyValue{EventType.String(v.EventType), Status.String(v.Status)}
					if v.Generation > 0 {
						of = append(of, EventGeneration.Int64(v.Generation))
					}
					o.Observe(v.Value, metric.WithAttributes(of...))
				}
			}
			return nil
		}
	}
	gauge := func(name, unit, about string) {
		_, err := m.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(about),
			metric.WithFloat64Callback(of(name)))
		errs = append(errs, err)
	}
	gauge(Backlog, "{event}", "Events by type and status, counted up to a limit.")
	gauge(BacklogAge, "s", "How long the oldest of these has been due, failed, or in flight since its last renewal.")
	gauge(OpenBreakers, "{breaker}", "Handlers that are not called, because too many of their events have failed.")
	gauge(Quarantined, "{event}", "Events that no worker claims because their rows can be neither handled nor written.")
	gauge(Expiring, "{event}", "Failed events that retention takes within seven days.")
	gauge(LeasesOverdue, "{event}", "Events in flight whose lease ran out more than a minute ago.")
	gauge(RowsOverdue, "{row}", "Of the 2,000 oldest events, those past their retention for more than a day.")
	gauge(Rows, "{row}", "Rows of core.outbox, as the planner estimates.")
	gauge(Partitions, "{partition}", "Partitions of core.outbox, 0 for one table.")
	gauge(LatencyP99, "s", "Time from due to settled of 99 % of the events sampled in the latest hour.")
	gauge(QueueUsage, "1", "Share of the notification queue that is used.")
	gauge(SnapshotIDs, "{transaction}", "Transactions that have begun since the oldest one that runs.")
	gauge(SnapshotAge, "s", "Age of the oldest transaction with a snapshot, if the login may see all sessions.")
	d.since = time.Now()
	_, unread := m.Float64ObservableGauge(ReadAge, metric.WithUnit("s"), metric.WithDescription(
		"How long ago the metrics of the database were read."), metric.WithFloat64Callback(
		func(_ context.Context, o metric.Float64Observer) error {
			at := d.since
			if last := d.last.Load(); last != nil {
				at = last.at
			}
			o.Observe(time.Since(at).Seconds())
			return nil
		}))
	_, err := m.Float64ObservableCounter(Replayed, metric.WithUnit("{event}"), metric.WithDescription(
		"Events that operators have replayed since this worker started."), metric.WithFloat64Callback(of(Replayed)))
	return errors.Join(append(errs, err, unread)...)
}
