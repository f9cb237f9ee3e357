package eventstest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"spectral/internal/core/events"
)

const (
	drainTimeout     = 30 * time.Second      // how long Drain waits
	drainPoll        = 10 * time.Millisecond // between two looks at the outbox
	startStopTimeout = time.Minute           // bounds a start and a stop
)

// Drain waits until no event in the outbox is due, waits for a retry or is in flight, which includes what handlers
// publish, and returns the outcome of each. Failed events and those that are scheduled for later do not count. If that
// takes too long the test fails, with a table of what is left. It fails at once where waiting cannot help: a handler
// lacks a privilege, or no handler of the running workers is for an event's type. See [Outbox] for what db may be.
func Drain(t testing.TB, db events.Tx) []Outcome {
	t.Helper()
	return DrainWithin(t, db, drainTimeout)
}

// DrainWithin is Drain with another time to wait.
func DrainWithin(t testing.TB, db events.Tx, d time.Duration) []Outcome {
	t.Helper()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for polls := 0; ; polls++ {
		if polls%10 == 9 {
			failIfUndeliverable(t, db)
		}
		all, err := Outcomes(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		rest := slices.DeleteFunc(slices.Clone(all), func(o Outcome) bool { return !o.Waiting })
		if len(rest) == 0 {
			return all
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("the outbox is not quiet after %s; of %d events these are left:\n%s", d, len(all), table(rest))
		}
	}
}

// failIfUndeliverable fails the test if an event waits for what only the code can change, and says what to change.
func failIfUndeliverable(t testing.TB, db events.Tx) {
	t.Helper()
	var eventType, lastError string
	err := db.QueryRow(t.Context(), `select o.event_type, coalesce(o.last_error, '') from core.outbox o
		where o.deleted_at is null and `+waiting+` and (o.last_error like '%(SQLSTATE 42501)%'
		  or o.last_error is null and exists (select from core.live_workers w where w.generation = o.generation)
		    and not exists (select from core.live_workers w where w.generation = o.generation and w.handlers ? o.event_type))
		limit 1`).Scan(&eventType, &lastError)
	switch {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		t.Fatalf("drain: look for events that cannot be delivered: %v", err)
	case lastError == "":
		t.Fatalf("%s has no handler in the workers that run: list its consumer in ConsumerBuilders "+
			"(internal/app/consumers.go), or declare its contract Unconsumed", eventType)
	default:
		t.Fatalf("%s cannot be delivered: %s%s", eventType, lastError, missingGrant(t, db, lastError))
	}
}

var deniedTable = regexp.MustCompile(`(?m)^\w+: ((\w+)\.\w+): .*permission denied for table (\w+)`)

// missingGrant says which role has which privileges on the table that an error is about; empty if it is about no table.
func missingGrant(t testing.TB, db events.Tx, lastError string) string {
	t.Helper()
	denied := deniedTable.FindStringSubmatch(lastError)
	if denied == nil {
		return ""
	}
	role := "spectral_" + denied[2]
	var table, privileges string
	err := db.QueryRow(t.Context(), `select c.oid::regclass::text, coalesce((select string_agg(p, ', ')
		  from unnest('{select,insert,update,delete}'::text[]) as p where has_table_privilege($1, c.oid, p)), 'none')
		from pg_class c join pg_namespace n on n.oid = c.relnamespace
		where c.relname = $2 and n.nspname not in ('pg_catalog', 'information_schema')
		order by n.nspname <> $3 limit 1`, role, denied[3], denied[2]).Scan(&table, &privileges)
	if err != nil {
		return fmt.Sprintf("\n(the privileges on %s cannot be read: %v)", denied[3], err)
	}
	return fmt.Sprintf("\n%[1]s runs as %[2]s, whose privileges on %[4]s are: %[3]s. Grant what it needs in the "+
		"migration that creates the table, and run `make generate`:\n  grant select, insert, update on %[4]s to %[2]s;",
		denied[1], role, privileges, table)
}

// RequireDelivered fails the test unless there are events and all of them were delivered, with a table of those that
// were not. An event that is scheduled for later was not.
func RequireDelivered(t testing.TB, outcomes []Outcome) {
	t.Helper()
	if len(outcomes) == 0 {
		t.Fatal("there are no events that could have been delivered")
	}
	rest := slices.DeleteFunc(slices.Clone(outcomes), func(o Outcome) bool { return o.Status == Delivered })
	if len(rest) > 0 {
		t.Fatalf("%d of %d events were not delivered:\n%s", len(rest), len(outcomes), table(rest))
	}
}

// table shows outcomes to people.
func table(outcomes []Outcome) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "  event\ttype\tgeneration\tstatus\tattempts\tdue\thandler failures\tlast error")
	for i, o := range outcomes {
		if i == maxListed {
			_, _ = fmt.Fprintf(w, "  and %d more\n", len(outcomes)-i)
			break
		}
		var failures []string
		for _, name := range slices.Sorted(maps.Keys(o.Failures)) {
			text := fmt.Sprintf("%s %d", name, o.Failures[name].Failures)
			if o.Failures[name].Parked {
				text += " (parked)"
			}
			failures = append(failures, text)
		}
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\n", o.Envelope.EventID, o.Envelope.EventType,
			o.Generation, o.Status, o.Attempts, o.AvailableAt.Format("2006-01-02 15:04:05.000Z"),
			cmp.Or(strings.Join(failures, ", "), "none"), shortened(o.LastError))
	}
	_ = w.Flush()
	return b.String()
}

// Service is what Start runs: a listener, or a whole worker process. It may be stopped twice.
type Service interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
}

// Start starts s and stops it with the test.
func Start(t testing.TB, s Service) {
	t.Helper()
	starting, cancel := context.WithTimeout(t.Context(), startStopTimeout)
	defer cancel()
	if err := s.Start(starting); err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		stopping, cancel := context.WithTimeout(context.Background(), startStopTimeout)
		defer cancel()
		if err := s.Stop(stopping); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
}
