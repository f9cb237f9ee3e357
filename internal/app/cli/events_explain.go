package cli

import (
	"context"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func eventsExplainCommand(p Process) *cobra.Command {
	var subjects []string
	cmd := &cobra.Command{
		Use: "explain ID|TYPE", Short: "Say why an event, or the events of a type, have not run",
		Args: positional(cobra.ExactArgs(1), &subjects, word[string]),
		Long: `Say why an event has not run, or what became of it; for a type, in each generation that has pending events of
it or a live worker for it. What alone keeps an event from running comes first. Each cause has the command that shows
more of it, or ends it. A row that another session has locked is not waited for.`,
		Example: `  workers events explain 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10
  workers events explain worlds.scan.completed`,
	}
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		explain := func() ([]operator.Explanation, error) { return o.Events.ExplainType(ctx, subjects[0]) }
		if id, err := uuid.Parse(subjects[0]); err == nil {
			explain = func() ([]operator.Explanation, error) { return o.Events.Explain(ctx, id) }
		}
		all, err := explain()
		if err != nil {
			return err
		}
		if all == nil {
			all = []operator.Explanation{}
		}
		return p.print(map[string]any{"explained": all}, func() { printExplanations(p, all) })
	})
}

func printExplanations(p Process, all []operator.Explanation) {
	for _, e := range all {
		if e.EventID != nil {
			p.printf("event %s  %s, %s in generation %d\n", e.EventID, e.Status, visible(e.EventType), e.Generation)
		} else {
			p.printf("%s in generation %d, which is %s\n", visible(e.EventType), e.Generation, e.Status)
		}
		for _, c := range e.Causes {
			p.printf("  %-11s  %s\n%15s%s\n", c.Code, visible(c.Fact), "", visible(c.Command))
		}
	}
	if len(all) == 0 {
		p.notef("no generation has pending events of the type, or a live worker for it")
	} else {
		p.next("%s", visible(all[0].Causes[0].Command))
	}
}
