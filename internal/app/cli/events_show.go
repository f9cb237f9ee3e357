package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres/admin"
)

// maxShown is how much of a payload is printed unless all of it is asked for.
const maxShown = 16 << 10

func eventsShowCommand(p Process) *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show all that is known of an event",
		Long: `Show an event: its envelope, where it was routed, its attempts and times, what each handler made of it or still has to,
its history, what operators did to it, and its payload.

Handlers are those that have handled or failed it, and those of live workers of its generation:

  handled      its key is in core.event_handled: a replay does not run it again
  failing      failed, and retried
  parked       failed for good, in this cycle: a replay runs it
  to_run       has not run yet
  not_run      had no part in it when the event was settled: a replay runs it
  not_target   is of another context than the event is for: does not run

Characters that a terminal would act on are written as in a Go string.`,
		Example: `  workers events show 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10
  workers events show --json 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10 | jq '.events[0].payload'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("want the id of one event: `workers events list` has them")}
			}
			_, err := parseID(args[0])
			if err != nil {
				return usageError{err}
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	asJSON := jsonFlag(cmd)
	cmd.Flags().BoolVar(&full, "full", false, fmt.Sprintf("print a payload over %d KiB to its end", maxShown>>10))
	cmd.RunE = operating(p, func(cmd *cobra.Command, args []string, a *admin.Admin) error {
		id, err := parseID(args[0])
		if err != nil {
			return usageError{err}
		}
		all, err := a.Show(cmd.Context(), id)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(p, struct {
				Events []admin.Detail `json:"events"`
			}{all})
		}
		for i, d := range all {
			if i > 0 {
				_, _ = fmt.Fprintln(p.Stdout)
			}
			printDetail(p, d, full)
		}
		if len(all) > 1 {
			_, _ = fmt.Fprintf(p.Stderr, "%d events have this id, and occurred at different times\n", len(all))
		}
		return nil
	})
	return cmd
}

func printDetail(p Process, d admin.Detail, full bool) {
	status := any(string(d.Status))
	if coloured(p) {
		status = statusColour(string(d.Status)).Sprint(d.Status)
	}
	_, _ = fmt.Fprintf(p.Stdout, "event %s  %s\n", d.ID, status)
	target := "every context"
	if d.Target != nil {
		target = string(*d.Target)
	}
	for _, line := range [][2]string{
		{"type", fmt.Sprintf("%s version %d", visible(d.EventType), d.EventVersion)},
		{"source", string(d.Source)},
		{"target", target},
		{"workspace", workspace(d.Event)},
		{"occurred", d.OccurredAt.Format("2006-01-02T15:04:05.000000Z")}, // a part of the key
		{"key", visible(d.IdempotencyKey)},
		{"trace", orDash(d.TraceContext)},
		{"content", d.ContentClass},
		{"routing", fmt.Sprintf("generation %d, channel %s, class %s", d.Generation, visible(d.Channel), visible(d.Class))},
		{"attempts", fmt.Sprintf("%d in this cycle, %s, %s", d.Attempts, app.Counted(d.PriorReplays, "prior replay"), app.Counted(d.Crashes, "crash"))},
		{"published", timestamp(&d.CreatedAt)},
		{"available", timestamp(&d.AvailableAt)},
		{"first failed", timestamp(d.FirstFailedAt)},
		{"failed", timestamp(d.FailedAt)},
		{"leased", lease(d)},
		{"delivered", timestamp(d.DeliveredAt)},
		{"deleted", timestamp(d.DeletedAt)},
	} {
		if line[1] != "" {
			_, _ = fmt.Fprintf(p.Stdout, "  %-13s %s\n", line[0], line[1])
		}
	}
	if d.LastError != nil {
		section(p, "last error")
		indented(p, visibleBut(*d.LastError, "\n"))
	}
	section(p, "handlers")
	if len(d.Handlers) == 0 {
		_, _ = fmt.Fprintln(p.Stdout, "  none")
	} else {
		printTable(p, []column{{title: "  HANDLER", cut: true}, {title: "STATE", colour: stageColour}, {title: "SINCE"}, {title: "FAILURES", right: true}, {title: "ERROR", cut: true}}, handlerRows(d))
	}
	if d.Workers == 0 {
		_, _ = fmt.Fprintf(p.Stdout, "  no live worker of generation %d handles %s\n", d.Generation, visible(d.EventType))
	}
	if d.Paused != nil {
		_, _ = fmt.Fprintln(p.Stdout, "  "+pauseLine(*d.Paused))
	}
	if len(d.History) > 0 {
		section(p, "history")
		for _, entry := range d.History {
			indented(p, chapter(entry))
		}
	}
	if len(d.Actions) > 0 {
		section(p, "operator actions")
		for _, a := range d.Actions {
			indented(p, act(a))
		}
	}
	section(p, "payload")
	printPayload(p, d.Payload, full)
}

func section(p Process, title string) { _, _ = fmt.Fprintf(p.Stdout, "\n%s\n", title) }

func indented(p Process, text string) {
	for line := range strings.Lines(text) {
		_, _ = fmt.Fprintf(p.Stdout, "  %s\n", strings.TrimRight(line, "\n"))
	}
}

// timestamp is a time as it is written everywhere, in UTC; nothing for none.
func timestamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func orDash(s *string) string {
	if s == nil {
		return "-"
	}
	return visible(*s)
}

// lease is who has the event in flight, and for how long.
func lease(d admin.Detail) string {
	if d.Status != admin.InFlight {
		return ""
	}
	text := timestamp(d.ClaimedAt) + " by " + orDash(d.ClaimedBy) + " until " + timestamp(d.LeaseExpiresAt)
	if d.LeaseHandler != nil {
		text += ", at work: " + visible(*d.LeaseHandler)
	}
	return text
}

func handlerRows(d admin.Detail) [][]any {
	rows := make([][]any, len(d.Handlers))
	for i, s := range d.Handlers {
		failures := any(s.Failures)
		if s.Free > 0 {
			failures = fmt.Sprintf("%d and %d not counted", s.Failures, s.Free)
		}
		problem := s.Error
		if s.Class != "" {
			problem = s.Class + ": " + problem
		}
		if s.HandledAs != nil {
			problem = "by event " + s.HandledAs.String() + ", of the same key"
		}
		rows[i] = []any{"  " + visible(s.Handler), string(s.Stage), timestamp(s.HandledAt), failures, firstLine(&problem)}
	}
	return rows
}

// stageColour marks what needs an eye.
func stageColour(value any) text.Colors {
	switch value {
	case string(admin.Parked):
		return statusColour("failed")
	case string(admin.Failing):
		return statusColour("in_flight")
	case string(admin.Handled):
		return statusColour("delivered")
	default:
		return nil
	}
}

// chapter is an entry of failure_history in a line, or in as many as its error has. What has no known form is shown as it is.
func chapter(entry json.RawMessage) string {
	var h struct {
		Cycle         json.Number `json:"cycle"`
		Attempts      json.Number `json:"attempts"`
		LastError     *string     `json:"last_error"`
		FirstFailedAt *time.Time  `json:"first_failed_at"`
		FailedAt      *time.Time  `json:"failed_at"`
		ReplayedAt    *time.Time  `json:"replayed_at"`
		ReplayedBy    *string     `json:"replayed_by"`
		DeliveredAt   *time.Time  `json:"delivered_at"`
		DiscardedAt   *time.Time  `json:"discarded_at"`
		DiscardedBy   *string     `json:"discarded_by"`
		UndiscardedAt *time.Time  `json:"undiscarded_at"`
		UndiscardedBy *string     `json:"undiscarded_by"`
		ReapedAt      *time.Time  `json:"reaped_at"`
		Reason        *string     `json:"reason"`
		Omitted       json.Number `json:"omitted"`
	}
	err := json.Unmarshal(entry, &h)
	switch {
	case err == nil && h.ReplayedAt != nil:
		line := fmt.Sprintf("%s  replayed by %s, ending cycle %s: %s", timestamp(h.ReplayedAt), orDash(h.ReplayedBy), h.Cycle, attempts(h.Attempts))
		if h.FirstFailedAt != nil {
			line += ", first failed " + timestamp(h.FirstFailedAt)
		}
		if h.FailedAt != nil {
			line += ", failed " + timestamp(h.FailedAt)
		}
		if h.DeliveredAt != nil {
			line += ", delivered " + timestamp(h.DeliveredAt)
		}
		if h.LastError != nil {
			for part := range strings.Lines(*h.LastError) {
				line += "\n  " + visible(strings.TrimRight(part, "\n"))
			}
		}
		return line
	case err == nil && h.ReapedAt != nil:
		return timestamp(h.ReapedAt) + "  " + orDash(h.Reason)
	case err == nil && h.DiscardedAt != nil:
		return fmt.Sprintf("%s  discarded by %s: %s", timestamp(h.DiscardedAt), orDash(h.DiscardedBy), orDash(h.Reason))
	case err == nil && h.UndiscardedAt != nil:
		return fmt.Sprintf("%s  undiscarded by %s", timestamp(h.UndiscardedAt), orDash(h.UndiscardedBy))
	case err == nil && h.Omitted != "":
		if h.Omitted == "1" {
			return "1 earlier entry was left out"
		}
		return fmt.Sprintf("%s earlier entries were left out", h.Omitted)
	default:
		return visible(string(entry))
	}
}

// attempts are as many as a history says, which is what a hand may have written.
func attempts(n json.Number) string {
	if whole, err := n.Int64(); err == nil {
		return app.Counted(whole, "attempt")
	}
	return visible(n.String()) + " attempts"
}

func act(a admin.Action) string {
	line := fmt.Sprintf("%s  %s by %s", timestamp(&a.ActedAt), visible(a.Action), visible(a.ActedBy))
	if a.Login != a.ActedBy {
		line += " as " + visible(a.Login)
	}
	if a.Generation != nil {
		line += fmt.Sprintf(", generation %d", *a.Generation)
	}
	if a.Events > 1 {
		line += fmt.Sprintf(", one of %d events", a.Events)
	}
	if details := string(a.Details); details != "{}" {
		line += "  " + visible(details)
	}
	return line
}

// printPayload prints a payload with an indent, and of a long one the beginning, unless full.
func printPayload(p Process, payload json.RawMessage, full bool) {
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, payload, "  ", "  "); err != nil {
		pretty.Reset()
		_, _ = pretty.Write(payload)
	}
	shown := pretty.Bytes()
	if !full && len(shown) > maxShown {
		shown = bytes.ToValidUTF8(shown[:maxShown], nil) // half a character at the cut
	}
	_, _ = io.WriteString(p.Stdout, "  "+visibleBut(string(shown), "\n")+"\n")
	if rest := pretty.Len() - len(shown); rest > 0 {
		_, _ = fmt.Fprintf(p.Stdout, "  ... %s: --full prints the rest, --json has it too\n", app.Counted(rest, "more byte"))
	}
}
