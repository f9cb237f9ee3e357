package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/admin"
)

// completionTimeout bounds what somebody who pressed the tabulator waits for.
const completionTimeout = 3 * time.Second

// none is how an absent target or workspace is written.
const none = "none"

// filterFlags adds the flags that say which events a command is about, with completions, and returns what reads them. The
// filter has nothing but what is asked for: without --status, events of the given statuses are for [orOf] to fill in; of none
// given: of all that are no tombstones. What makes no sense is a usageError, and so is an empty value.
func filterFlags(cmd *cobra.Command, p Process, statuses ...admin.Status) func() (admin.Filter, error) {
	flags := cmd.Flags()
	byDefault := "all but discarded"
	if len(statuses) > 0 {
		byDefault = admin.Joined(statuses)
	}
	text := func(name, usage string, values func() []string) *[]string {
		flag := textsFlag(flags, name, usage)
		completeFlag(cmd, name, values)
		return flag
	}
	status := text("status", "pending (due or scheduled), "+admin.Joined(admin.Statuses())+" (default: "+byDefault+")", func() []string { return append(admin.Texts(admin.Statuses()), "pending") })
	discarded := flags.Bool("discarded", false, "only discarded events: the same as --status discarded")
	eventTypes := text("type", "event type", knownTypes)
	sources := text("source", "context that published: core, platform or worlds", scopes)
	targets := text("target", "context it is for: core, platform, worlds, or "+none+" for events for every context", func() []string { return append(scopes(), none) })
	handlers := text("handler", "handler that has failed, like worlds.rule_health_recorder", knownHandlers)
	workspaces := text("workspace", "workspace id, or "+none+" for events of no workspace", func() []string { return []string{none} })
	generations := generationsFlag(cmd, p)
	channels := text("channel", "channel, like outbox_gen_1", func() []string { return known(cmd, p, (*admin.Admin).KnownChannels) })
	ages := ageFlags(cmd, "longer ago than this, like 90m or 3d: since it failed if it has, else since it was published")
	classes := text("error", "error class: the text of last_error before the first colon, like IntegrityError", func() []string { return known(cmd, p, (*admin.Admin).KnownErrorClasses) })
	contains := textFlag(flags, "error-contains", "a part of last_error, as it is written there")
	completeFlag(cmd, "error-contains", func() []string { return nil })

	return func() (admin.Filter, error) {
		filter := admin.Filter{EventTypes: *eventTypes, Handlers: *handlers, Channels: *channels,
			ErrorClasses: *classes, ErrorContains: *contains}
		var problems []error
		switch {
		case *discarded && len(*status) > 0:
			problems = append(problems, errors.New("--discarded and --status are both given: leave one of them out"))
		case *discarded:
			filter.Statuses = []admin.Status{admin.Discarded}
		case len(*status) > 0:
			for _, s := range *status {
				if s == "pending" {
					filter.Statuses = append(filter.Statuses, admin.Due, admin.Scheduled)
				} else {
					filter.Statuses = append(filter.Statuses, admin.Status(s))
				}
			}
		}
		for _, s := range *sources {
			filter.Sources = append(filter.Sources, events.Scope(s))
		}
		for _, t := range *targets {
			if t == none {
				t = ""
			}
			filter.Targets = append(filter.Targets, events.Scope(t))
		}
		for _, w := range *workspaces {
			var workspace uuid.NullUUID
			if w != none {
				id, err := parseID(w)
				if err != nil {
					problems = append(problems, fmt.Errorf("--workspace %w, or %s", err, none))
				}
				workspace = uuid.NullUUID{UUID: id, Valid: true}
			}
			filter.Workspaces = append(filter.Workspaces, workspace)
		}
		var err error
		filter.Generations, err = generations()
		problems = append(problems, err)
		filter.OlderThan, filter.NewerThan, err = ages()
		problems = append(problems, err)
		if errors.Join(problems...) == nil {
			problems = append(problems, filter.Validate())
		}
		if err := errors.Join(problems...); err != nil {
			return admin.Filter{}, usageError{err}
		}
		return filter, nil
	}
}

// generationsFlag adds --generation of a filter, completed by those that are known, and returns what reads it.
func generationsFlag(cmd *cobra.Command, p Process) func() ([]events.Generation, error) {
	given := textsFlag(cmd.Flags(), "generation", "deployment generation")
	completeFlag(cmd, "generation", func() []string { return known(cmd, p, (*admin.Admin).KnownGenerations) })
	return func() (all []events.Generation, _ error) {
		var problems []error
		for _, g := range *given {
			generation, err := events.ParseGeneration(g)
			if err != nil {
				problems = append(problems, fmt.Errorf("--generation: %w", err))
				continue
			}
			all = append(all, generation)
		}
		return all, errors.Join(problems...)
	}
}

// ageFlags adds --older-than, of that usage, and --newer-than, and returns what reads them; zero for what is not given.
func ageFlags(cmd *cobra.Command, usage string) func() (older, newer time.Duration, err error) {
	olderThan := textFlag(cmd.Flags(), "older-than", usage)
	newerThan := textFlag(cmd.Flags(), "newer-than", "not longer ago than this")
	for _, name := range []string{"older-than", "newer-than"} {
		completeFlag(cmd, name, func() []string { return []string{"15m", "1h", "6h", "1d", "7d"} })
	}
	return func() (older, newer time.Duration, err error) {
		var problems []error
		for _, bound := range []struct {
			flag, value string
			into        *time.Duration
		}{{"older-than", *olderThan, &older}, {"newer-than", *newerThan, &newer}} {
			if bound.value == "" {
				continue
			}
			age, err := parseAge(bound.value)
			if err != nil {
				problems = append(problems, fmt.Errorf("--%s %w", bound.flag, err))
			}
			*bound.into = age
		}
		return older, newer, errors.Join(problems...)
	}
}

// asks reports whether a filter asks for some events rather than all.
func asks(f admin.Filter) bool {
	return len(f.Statuses)+len(f.EventTypes)+len(f.Sources)+len(f.Targets)+len(f.Handlers)+len(f.Workspaces)+len(f.Generations)+len(f.Channels)+
		len(f.ErrorClasses)+len(f.ErrorContains) > 0 || f.OlderThan > 0 || f.NewerThan > 0
}

// orOf is a filter that is about events of those statuses if it asks for none itself.
func orOf(f admin.Filter, statuses ...admin.Status) admin.Filter {
	if len(f.Statuses) == 0 {
		f.Statuses = statuses
	}
	return f
}

// parseID reads an id as it is written in the outbox: other notations of a UUID would not be found by eye.
func parseID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != len(id.String()) {
		return uuid.Nil, fmt.Errorf("%.60q: want an id like 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10", s)
	}
	return id, nil
}

// parseAge reads a time span in Go's notation or in whole days.
func parseAge(s string) (time.Duration, error) {
	days, isDays := strings.CutSuffix(s, "d")
	if n, err := strconv.ParseUint(days, 10, 16); isDays && err == nil && n > 0 {
		return time.Duration(n) * 24 * time.Hour, nil
	}
	age, err := time.ParseDuration(s)
	if err != nil || age <= 0 {
		return 0, fmt.Errorf("%.40q is no age: want a time span above 0 like 30s, 90m, 12h or 7d", s)
	}
	return age, nil
}

// completeFlag completes a flag by the values known, in their order.
func completeFlag(cmd *cobra.Command, flag string, values func() []string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values(), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	})
}

// known asks the database for values to complete with. Without one there are none.
func known(cmd *cobra.Command, p Process, values func(*admin.Admin, context.Context) ([]string, error)) []string {
	url, err := app.ReadDatabaseURL(p.Getenv)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	a, closeAdmin, err := app.OpenAdmin(ctx, url)
	if err != nil {
		return nil
	}
	defer closeAdmin()
	all, err := values(a, ctx)
	if err != nil {
		return nil
	}
	return all
}

func scopes() []string {
	return []string{string(events.Core), string(events.Platform), string(events.Worlds)}
}

// knownTypes are the event types of this build.
func knownTypes() []string {
	contracts, err := app.Contracts()
	if err != nil {
		return nil
	}
	names := make(map[string]bool)
	for _, c := range contracts.All() {
		names[c.Type] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// knownClasses are the processing classes of this build.
func knownClasses() []string {
	contracts, err := app.Contracts()
	if err != nil {
		return nil
	}
	classes, err := app.Classes(app.ConsumerBuilders(), contracts)
	if err != nil {
		return nil
	}
	return classes
}

// knownHandlers are the handlers of this build.
func knownHandlers() []string {
	var names []string
	for _, build := range app.ConsumerBuilders() {
		for _, handler := range build(app.Parts{Generation: 1}).Handlers() {
			names = append(names, handler.Name)
		}
	}
	slices.Sort(names)
	return names
}
