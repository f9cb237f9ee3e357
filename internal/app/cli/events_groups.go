package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func eventsGroupsCommand(p Process) *cobra.Command {
	groups := operator.GroupFilter{}
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "groups", Short: "Group failures by handler, error class and message",
		Long: `Group the events that failed or wait for a retry: by handler, error class, and the message without ids, numbers
and quoted text. A group is new if it was first seen in the highest live generation. Events that came back failed in the
same way before they were replayed.

Every command that selects events takes --group. A muted group is left out of this list and of warnings.`,
		Example: `  workers events groups
  workers events groups --new-since 8`,
	}
	filter := filterFlags[string](cmd, "")
	oneFlag(cmd.Flags(), &groups.FirstSeenIn, "new-since", "only groups first seen in this generation or a later one",
		events.ParseGeneration)
	cmd.Flags().BoolVar(&groups.Muted, "muted", false, "muted groups too")
	limitFlag(cmd, &groups.Limit, "groups to list")
	timeoutFlag(cmd, &timeout)
	operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		groups.Events = *filter
		found, err := o.Events.ErrorGroups(ctx, groups, timeout)
		if err != nil {
			return err
		}
		return p.print(found, func() { printGroups(p, found) })
	})
	listed := cmd.RunE
	group(cmd, eventsGroupsNoteCommand(p), eventsGroupsMuteCommand(p), eventsGroupsUnmuteCommand(p))
	unknown := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(cmd, args)
		}
		return listed(cmd, args)
	}
	return cmd
}

func printGroups(p Process, found operator.ErrorGroups) {
	printTable(p, found.Groups, func(g operator.ErrorGroup) []any {
		mark := ""
		switch {
		case g.MutedUntil != nil:
			mark = "muted until " + timestamp(g.MutedUntil)
		case g.CameBack > 0:
			mark = fmt.Sprintf("%d came back", g.CameBack)
		case g.New:
			mark = "new"
		}
		return []any{g.GroupID, g.Handler, g.Failed, g.Retrying, mark, distance(&g.FirstSeen, found.AsOf),
			distance(&g.LastSeen, found.AsOf), g.FirstGeneration, g.Workspaces, g.ErrorClass + ": " +
				firstLine(&g.Message)}
	}, "GROUP", "HANDLER", "FAILED", "RETRYING", "MARK", "OLDEST", "LATEST", "GENERATION", "WORKSPACES", "ERROR")
	for _, g := range found.Groups {
		if g.Note != nil {
			p.printf("%s: %s (%s)\n", g.GroupID, *g.Note, textOf(g.NotedBy))
		}
	}
	if found.Muted > 0 {
		p.notef("%s left out: --muted shows them", operator.Counted(found.Muted, "muted group"))
	}
	if found.More {
		p.notef("there are more groups: --limit takes up to %d", operator.MaxPageSize)
	}
	if len(found.Groups) == 0 {
		p.notef("no failure matches")
		return
	}
	p.next("workers events list --group %s", found.Groups[0].GroupID)
}

// changingGroup makes cmd change one group of errors.
func changingGroup(p Process, cmd *cobra.Command, done string,
	change func(_ context.Context, _ *operator.Client, group, by string) error) *cobra.Command {
	var groups []string
	cmd.Args = positional(cobra.ExactArgs(1), &groups, word)
	who := by(cmd, p)
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		if err := change(ctx, o.Events, groups[0], *who); err != nil {
			return err
		}
		return p.print(map[string]string{"group_id": groups[0], "result": done}, func() {
			p.printf("%s group %s\n", done, groups[0])
		})
	})
}

func eventsGroupsNoteCommand(p Process) *cobra.Command {
	note, remove := "", false
	cmd := &cobra.Command{
		Use: "note GROUP", Short: "Write a note on a group of errors",
		Example: `  workers events groups note 3fa9c15b2e7d --note "mail server down, ticket 4711"`,
	}
	oneFlag(cmd.Flags(), &note, "note", "what is known of it, at most 1024 bytes", word)
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the note")
	cmd.MarkFlagsOneRequired("note", "remove")
	cmd.MarkFlagsMutuallyExclusive("note", "remove")
	return changingGroup(p, cmd, "noted", func(ctx context.Context, c *operator.Client, group, by string) error {
		return c.NoteGroup(ctx, group, note, by)
	})
}

func eventsGroupsMuteCommand(p Process) *cobra.Command {
	var length time.Duration
	cmd := &cobra.Command{
		Use: "mute GROUP", Short: "Leave a group of errors out of lists and warnings for a while",
		Example: `  workers events groups mute 3fa9c15b2e7d --for 3d`,
	}
	oneFlag(cmd.Flags(), &length, "for", "how long, like 12h or 3d, at most 366 days", operator.ParseAge)
	_ = cmd.MarkFlagRequired("for")
	return changingGroup(p, cmd, "muted", func(ctx context.Context, c *operator.Client, group, by string) error {
		if length > 366*24*time.Hour {
			return errors.New("--for: at most 366 days")
		}
		return c.MuteGroup(ctx, group, length, by)
	})
}

func eventsGroupsUnmuteCommand(p Process) *cobra.Command {
	return changingGroup(p, &cobra.Command{
		Use: "unmute GROUP", Short: "End the mute of a group of errors",
		Example: `  workers events groups unmute 3fa9c15b2e7d`,
	}, "unmuted", func(ctx context.Context, c *operator.Client, group, by string) error {
		return c.MuteGroup(ctx, group, 0, by)
	})
}
