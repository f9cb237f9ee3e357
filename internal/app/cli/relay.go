package cli

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"spectral/internal/app"
	"spectral/internal/app/embeddednats"
	"spectral/internal/core/events/infrastructure/jetstream"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

func relayCommand(p Process) *cobra.Command {
	return group(&cobra.Command{
		Use: "relay", Short: "Switch events to NATS JetStream and back",
		Long: `Choose the path of events: workers with --relay jetstream send them to a broker and handle them when they come
back, or handle them from Postgres. Other workers handle from Postgres whatever they claim.`,
	}, relayCompareCommand(p), relaySwitchCommand(p), relayBackCommand(p))
}

func relayCompareCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "compare", Short: "Have events take both paths for a time, and compare", Args: cobra.NoArgs,
		Long: `For a time workers send the events that they claim to the broker too, and handle them on both paths, of which
the dedup keys let one succeed. Then compare: each event that was sent must have come back as it was, be settled, and
have been received by each handler. Exits 3 if that is not so, or if there was no event. If it is killed, events take
both paths until the next compare, switch or back.

While both paths have an event, one may have to wait a second for the other; no attempt is counted.

It reads a copy of the stream, for which it needs SPECTRAL_NATS_URL, as workers do.`,
		Example: `  workers relay compare
  workers relay compare --for 10m --json`,
	}
	span := 30 * time.Second
	oneFlag(cmd.Flags(), &span, "for", "how long", between(time.ParseDuration, time.Second, time.Hour))
	who := by(cmd, p)
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		broker, err := app.ReadRelay(p.Getenv)
		if err != nil {
			return err
		}
		p.notef("comparing both paths for %s", span)
		c, err := app.CompareRelay(ctx, o.Events, *broker, span, *who)
		if err != nil {
			return err
		}
		if err := p.print(struct {
			app.Comparison
			Equal bool `json:"equal"`
		}{c, c.Equal()}, func() { printComparison(p, c) }); err != nil || c.Equal() {
			return err
		}
		return exitError{errors.New("the paths are not shown to be equal: see above; nothing is lost"), exitAttention}
	})
}

func printComparison(p Process, c app.Comparison) {
	p.printf("%d events were sent in %.0f s, %d arrived\n", c.Sent, c.Seconds, c.Arrived)
	p.printf("%d differ, %d are missing, %d came more than once, %d are not marked as sent\n", c.Different, c.Missing,
		c.Repeated, c.Unmarked)
	p.printf("%d delivered, %d failed, %d waiting\n", c.Delivered, c.Failed, c.Waiting)
	for _, handler := range slices.Sorted(maps.Keys(c.Handled)) {
		p.printf("%d handled once by %s\n", c.Handled[handler], handler)
	}
	for _, consumer := range slices.Sorted(maps.Keys(c.Unacked)) {
		if n := c.Unacked[consumer]; n > 0 {
			p.printf("%d messages wait for %s\n", n, consumer)
		}
	}
	for _, id := range c.Samples {
		p.next("workers events show %s", id)
	}
	switch {
	case c.Equal():
		p.printf("both paths have the same events\n")
		p.next("workers relay switch")
	case c.Sent == 0:
		p.printf("no event was sent: do workers run with --relay jetstream, and is anything published?\n")
	}
}

func relaySwitchCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "switch", Short: "Send events through the broker from now on", Args: cobra.NoArgs,
		Long: `Send events through the broker from now on, in all generations whose workers have --relay jetstream. While the
broker does not work, they handle events from Postgres by themselves.`,
		Example: `  workers relay switch`,
	}
	who := by(cmd, p)
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		if _, err := o.Events.SwitchRelay(ctx, pgtx.PathJetStream, *who); err != nil {
			return err
		}
		p.notef("workers with --relay jetstream follow at once; those without it handle events from Postgres")
		return printRelay(ctx, p, o)
	})
}

func relayBackCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "back", Short: "Handle events from Postgres again", Args: cobra.NoArgs,
		Long: `Handle events from Postgres again: no event is sent to the broker any more. Those that it has are handled from
there until --wait is over. Then what is left goes back to Postgres, so that the broker is needed no more.`,
		Example: `  workers relay back
  workers relay back --wait 0s`,
	}
	wait := 30 * time.Second
	oneFlag(cmd.Flags(), &wait, "wait", "how long the broker's events are waited for",
		between(time.ParseDuration, 0, time.Hour))
	who := by(cmd, p)
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		if _, err := o.Events.SwitchRelay(ctx, pgtx.PathPostgres, *who); err != nil {
			return err
		}
		returned, err := app.EmptyRelay(ctx, o.Events, wait)
		if returned > 0 {
			p.notef("%s went back to Postgres", operator.Counted(returned, "event"))
		}
		if err != nil {
			return err
		}
		return printRelay(ctx, p, o)
	})
}

func printRelay(ctx context.Context, p Process, o *app.Operator) error {
	state, err := o.Events.Relay(ctx)
	if err != nil {
		return err
	}
	return p.print(state, func() {
		p.printf("events take the path: %s\n", state.Path)
		p.printf("events that a broker has for their handlers: %d\n", state.Relayed)
	})
}

// relayFlag is --relay.
type relayFlag string

func (r *relayFlag) add(flags *pflag.FlagSet) {
	*r = pgtx.PathPostgres
	oneFlag(flags, r, "relay", "jetstream: connect to NATS too, and send events through it once 'workers relay "+
		"switch' says so", operator.OneOf(relayFlag(pgtx.PathPostgres), relayFlag(pgtx.PathJetStream)))
}

func (r relayFlag) on() bool { return r == pgtx.PathJetStream }

// broker reads the settings of the relay into s, if it is on and there is no server in this process.
func (r relayFlag) broker(p Process, s *app.Settings, own bool) (err error) {
	if r.on() && !own {
		s.Relay, err = app.ReadRelay(p.Getenv)
	}
	return err
}

// work is what a command does with its settings.
type work = func(context.Context, app.Settings) error

// withOwnBroker returns work that has a NATS server in this process.
func withOwnBroker(p Process, work work) work {
	return func(ctx context.Context, s app.Settings) error {
		server, err := embeddednats.Start(embeddednats.Config{})
		if err != nil {
			return err
		}
		defer server.Stop()
		p.notef("%s", server.Describe())
		s.Relay = &jetstream.Config{URL: server.URL()}
		return work(ctx, s)
	}
}

// switching returns work in which events are sent through a broker. Afterwards they take the path that they took
// before; if that is Postgres', what the broker still had does, too, because it may end with this process.
func switching(work work) work {
	return func(ctx context.Context, s app.Settings) error {
		o, err := app.OpenOperator(ctx, s.DatabaseURL)
		if err != nil {
			return err
		}
		defer o.Close()
		before, err := o.Events.SwitchRelay(ctx, pgtx.PathJetStream, "")
		if err != nil {
			return err
		}
		err = work(ctx, s)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.ShutdownGrace)
		defer cancel()
		_, backErr := o.Events.SwitchRelay(ctx, before, "")
		if backErr == nil && before == pgtx.PathPostgres {
			_, backErr = app.EmptyRelay(ctx, o.Events, 0)
		}
		return errors.Join(err, backErr)
	}
}
