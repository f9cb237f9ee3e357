package cli

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// errEmpty refuses a flag without a value: an unset variable of a script must not select everything.
var errEmpty = errors.New("want a value that is not empty, or leave the flag out")

// value is a [pflag.Value] that a function reads; an empty text is refused.
type value struct {
	kind, text string
	set        func(string) error
}

func (v *value) Set(text string) error {
	if text == "" {
		return errEmpty
	}
	if v.kind == "list" && v.text != "" {
		v.text += ","
	} else {
		v.text = ""
	}
	v.text += text
	return v.set(text)
}

func (v *value) String() string { return v.text }
func (v *value) Type() string   { return v.kind }

// oneFlag adds a flag that parse reads into a variable. The variable's value is the default.
func oneFlag[T any](flags *pflag.FlagSet, into *T, name, usage string, parse func(string) (T, error)) {
	v := &value{kind: "string", set: func(s string) (err error) { *into, err = parse(s); return err }}
	if !reflect.ValueOf(*into).IsZero() {
		v.text = fmt.Sprint(*into)
	}
	switch any(*into).(type) {
	case int, float64:
		v.kind = "number"
	case time.Duration:
		v.kind = "duration"
	}
	flags.Var(v, name, usage)
}

// listFlag adds a flag that takes several values, joined by commas or by repeating it.
func listFlag[T any](flags *pflag.FlagSet, into *[]T, name, usage string, parse func(string) (T, error)) {
	flags.Var(&value{kind: "list", set: func(s string) error {
		for part := range strings.SplitSeq(s, ",") {
			if part == "" {
				return errEmpty
			}
			parsed, err := parse(part)
			if err != nil {
				return err
			}
			*into = append(*into, parsed)
		}
		return nil
	}}, name, usage)
}

// wordsFlag is listFlag for known words, with their completion.
func wordsFlag[S ~string](cmd *cobra.Command, into *[]S, name, usage string, known []S) {
	listFlag(cmd.Flags(), into, name, usage, operator.OneOf(known...))
	complete(cmd, name, func() []S { return known })
}

func word[S ~string](s string) (S, error) { return S(s), nil }

// between returns a parser that accepts what parse reads, within bounds.
func between[T cmp.Ordered](parse func(string) (T, error), least, most T) func(string) (T, error) {
	return func(s string) (T, error) {
		v, err := parse(s)
		if err != nil || cmp.Compare(v, least) < 0 || cmp.Compare(v, most) > 0 { // NaN is below all
			return v, fmt.Errorf("want a value from %v to %v", least, most)
		}
		return v, nil
	}
}

func parseFloat(s string) (float64, error) { return strconv.ParseFloat(s, 64) }

// none stands for an absent target or workspace, pending for the statuses due and scheduled.
const none, pending = "none", "pending"

// anyStatus returns what --status takes where events in any status are listed or counted.
func anyStatus() []operator.Status { return append(operator.Statuses(), pending) }

// positional returns the Args of a command that takes a number of arguments, which parse reads into a variable.
func positional[T any](number cobra.PositionalArgs, into *[]T, parse func(string) (T, error)) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			v, err := parse(arg)
			if err != nil {
				return err
			}
			*into = append(*into, v)
		}
		return number(cmd, args)
	}
}

func parseTarget(s string) (events.Scope, error) {
	if s == none {
		return "", nil
	}
	return operator.OneOf(append(slices.Clone(scopes), none)...)(s)
}

func parseWorkspace(s string) (uuid.NullUUID, error) {
	if s == none {
		return uuid.NullUUID{}, nil
	}
	id, err := operator.ParseID(s)
	if err != nil {
		return uuid.NullUUID{}, fmt.Errorf("%w, or %s", err, none)
	}
	return uuid.NullUUID{UUID: id, Valid: true}, nil
}

// filterFlags adds the flags that select events, with completions. They are in the filter once the command runs. It
// adds --status, whose default the help names, if there is more than one status to choose from.
func filterFlags[S ~string](cmd *cobra.Command, byDefault S, statuses ...operator.Status) *operator.Filter {
	var f operator.Filter
	flags := cmd.Flags()
	if len(statuses) > 1 {
		wordsFlag(cmd, &f.Statuses, "status", fmt.Sprintf("%s (default: %s)", operator.Joined(statuses), byDefault), statuses)
	}
	listFlag(flags, &f.EventTypes, "type", "event type", word)
	wordsFlag(cmd, &f.Sources, "source", "context that published: core, platform or worlds", scopes)
	listFlag(flags, &f.Targets, "target",
		"context it is for: core, platform, worlds, or "+none+" for events for every context", parseTarget)
	listFlag(flags, &f.Handlers, "handler", "handler that has failed, like worlds.rule_health_recorder", word)
	listFlag(flags, &f.Workspaces, "workspace", "workspace id, or "+none+" for events of no workspace", parseWorkspace)
	listFlag(flags, &f.Generations, "generation", "deployment generation", events.ParseGeneration)
	listFlag(flags, &f.Channels, "channel", "channel, like outbox_gen_1", word)
	oneFlag(flags, &f.OlderThan, "older-than",
		"older than this, like 90m or 3d: since it failed, or else since it was published", operator.ParseAge)
	oneFlag(flags, &f.NewerThan, "newer-than", "not older than this", operator.ParseAge)
	listFlag(flags, &f.ErrorClasses, "error",
		"error class: the text of last_error before the first colon, like IntegrityError", word)
	listFlag(flags, &f.Groups, "group", "group of errors, as workers events groups lists them", word)
	oneFlag(flags, &f.ErrorContains, "error-contains", "a part of last_error, verbatim", word)
	complete(cmd, "type", knownTypes)
	complete(cmd, "target", func() []events.Scope { return append(slices.Clone(scopes), none) })
	complete(cmd, "handler", knownHandlers)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if i := slices.Index(f.Statuses, pending); i >= 0 {
			f.Statuses = slices.Replace(f.Statuses, i, i+1, operator.Due, operator.Scheduled)
		}
		return nil
	}
	return &f
}

func pageFlags(cmd *cobra.Command, page *operator.Page, of string) {
	limitFlag(cmd, &page.Limit, of+" to list")
	oneFlag(cmd.Flags(), &page.After, "after", "the next page after this cursor, with the same flags", word)
	timeoutFlag(cmd, &page.Timeout)
}

func limitFlag(cmd *cobra.Command, limit *int, what string) {
	*limit = operator.DefaultPageSize
	oneFlag(cmd.Flags(), limit, "limit", fmt.Sprintf("%s, from 1 to %d", what, operator.MaxPageSize),
		between(strconv.Atoi, 1, operator.MaxPageSize))
}

func timeoutFlag(cmd *cobra.Command, timeout *time.Duration) {
	*timeout = operator.DefaultSearchTimeout
	oneFlag(cmd.Flags(), timeout, "timeout", "cancel a search after this time",
		between(time.ParseDuration, time.Millisecond, 24*time.Hour))
}

// by adds --by. Its default is USER; empty stands for the login.
func by(cmd *cobra.Command, p Process) *string {
	who := strings.TrimSpace(p.Getenv("USER"))
	oneFlag(cmd.Flags(), &who, "by", "your name for core.operator_actions; by default USER, or else the login", word)
	return &who
}

func reasonFlag(cmd *cobra.Command) *string {
	reason := new(string)
	oneFlag(cmd.Flags(), reason, "reason", "why, for core.operator_actions", word)
	return reason
}

func jsonFlag(cmd *cobra.Command, p *Process) {
	cmd.Flags().BoolVar(&p.asJSON, "json", false, "print JSON")
}

func yesFlag(cmd *cobra.Command) *bool { return cmd.Flags().Bool("yes", false, "do not ask") }

// complete adds a completion of a flag by values, in their order.
func complete[S ~string](cmd *cobra.Command, flag string, values func() []S) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string,
		cobra.ShellCompDirective) {
		return operator.Strings(values()), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	})
}

var scopes = []events.Scope{events.Core, events.Platform, events.Worlds}

func knownTypes() []string { return ofContracts(func(c events.Contract) string { return c.Type }) }

func knownClasses() []string {
	return ofContracts(func(c events.Contract) string { return cmp.Or(c.Class, events.DefaultClass) })
}

// ofContracts returns what the contracts of this build have, sorted.
func ofContracts(what func(events.Contract) string) (names []string) {
	if contracts, err := app.Contracts(); err == nil {
		for _, c := range contracts.All() {
			names = append(names, what(c))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func knownHandlers() (names []string) {
	for _, build := range app.ConsumerBuilders() {
		for _, handler := range build(app.Deps{Generation: 1}).Handlers() {
			names = append(names, handler.Name)
		}
	}
	slices.Sort(names)
	return names
}
