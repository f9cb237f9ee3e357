package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func handlersCommand(p Process) *cobra.Command {
	return group(&cobra.Command{
		Use: "handlers", Short: "See handlers and their breakers; trip and close them",
		Long: `When ten events of a handler fail in a row with errors that usually pass, its breaker opens: the handler is not
called, and its events wait without a cost in attempts. Workers probe it with one event at a time, then two, four and
eight, and close the breaker when these succeed.`,
	}, handlersListCommand(p), handlersTripCommand(p), handlersCloseCommand(p))
}

func handlersListCommand(p Process) *cobra.Command {
	return operating(p, &cobra.Command{
		Use: "list", Short: "List handlers, those with an open breaker first", Args: cobra.NoArgs,
		Example: `  workers handlers list`,
	}, func(ctx context.Context, p Process, o *app.Operator) error {
		all, err := o.Events.Handlers(ctx)
		if err != nil {
			return err
		}
		now, err := o.Events.Now(ctx)
		if err != nil {
			return err
		}
		return p.print(map[string]any{"handlers": all}, func() {
			printTable(p, all, func(h operator.Handler) []any {
				waiting := fmt.Sprint(h.Waiting)
				if h.Waiting > operator.MaxWaiting {
					waiting = fmt.Sprint(operator.MaxWaiting, "+")
				}
				return []any{h.Handler, h.Generation, h.Breaker, waiting, distance(h.NextProbeAt, now), h.Workers,
					cmp.Or(h.ActsOutside, "-"), h.OnReplay, firstLine(h.Cause)}
			}, "HANDLER", "GENERATION", "BREAKER", "WAITING", "NEXT PROBE", "WORKERS", "OUTSIDE", "ON REPLAY", "ERROR")
			for _, h := range all {
				if h.Breaker != "closed" {
					p.printf("%s of generation %d: %s for %s, by %s: %s\n", h.Handler, h.Generation, h.Breaker,
						age(now.Sub(*h.OpenedAt)), textOf(h.OpenedBy), firstLine(h.Cause))
				}
			}
			switch {
			case len(all) == 0:
				p.notef("no handler is registered: a worker registers its handlers when it starts")
			case all[0].Breaker == "forced":
				p.next("workers handlers close %s --generation %d", all[0].Handler, all[0].Generation)
			default:
				p.next("workers events groups")
			}
		})
	})
}

// changingHandler makes cmd change the breaker of one handler in a generation.
func changingHandler(p Process, cmd *cobra.Command,
	change func(_ context.Context, _ Process, _ *operator.Client, _ events.Generation, handler, by string) error,
) *cobra.Command {
	var handlers []string
	var generation events.Generation
	cmd.Args = positional(cobra.ExactArgs(1), &handlers, word)
	cmd.ValidArgsFunction = cobra.FixedCompletions(knownHandlers(), cobra.ShellCompDirectiveNoFileComp)
	oneFlag(cmd.Flags(), &generation, "generation", "deployment generation", events.ParseGeneration)
	_ = cmd.MarkFlagRequired("generation")
	who := by(cmd, p)
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		return change(ctx, p, o.Events, generation, handlers[0], *who)
	})
}

func handlersTripCommand(p Process) *cobra.Command {
	var reason *string
	cmd := &cobra.Command{
		Use: "trip HANDLER", Short: "Open the breaker of a handler, until `workers handlers close`",
		Long: `Open the breaker of a handler: it is not called, not even to probe it, and its events wait. Other handlers of
these events run. ` + "`workers handlers close`" + ` ends that.`,
		Example: `  workers handlers trip platform.mailer --generation 8 --reason "mail server"`,
	}
	reason = reasonFlag(cmd)
	return changingHandler(p, cmd, func(ctx context.Context, p Process, c *operator.Client, g events.Generation,
		handler, by string) error {
		if err := c.TripHandler(ctx, g, handler, by, *reason); err != nil {
			return err
		}
		return p.print(map[string]any{"handler": handler, "generation": g, "breaker": "forced"}, func() {
			p.printf("the breaker of %s in generation %d is open\n", handler, g)
			p.next("workers handlers list")
		})
	})
}

func handlersCloseCommand(p Process) *cobra.Command {
	return changingHandler(p, &cobra.Command{
		Use: "close HANDLER", Short: "Close the breaker of a handler: the events that wait are due",
		Example: `  workers handlers close platform.mailer --generation 8`,
	}, func(ctx context.Context, p Process, c *operator.Client, g events.Generation, handler, by string) error {
		released, err := c.CloseHandler(ctx, g, handler, by)
		if err != nil {
			return err
		}
		return p.print(map[string]any{"handler": handler, "generation": g, "breaker": "closed", "due": released}, func() {
			p.printf("the breaker of %s in generation %d is closed; %s due\n", handler, g, eventsText(released))
		})
	})
}
