package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"spectral/internal/core/events/infrastructure/postgres/admin"
)

// tellUnknown says on stderr what a filter names that the database does not know, and what may have been meant: that no event
// fits says nothing of a misspelling. Found says that something does fit: then its handlers are known. It is a word beside a result,
// which must not wait long for it, nor be lost with it.
func tellUnknown(ctx context.Context, p Process, a *admin.Admin, filter admin.Filter, found bool) {
	ctx, cancel := context.WithTimeout(ctx, tellingTimeout)
	defer cancel()
	handlers := filter.Handlers
	if found {
		handlers = nil
	}
	generations := make([]string, len(filter.Generations))
	for i, g := range filter.Generations {
		generations[i] = fmt.Sprint(g)
	}
	for _, asked := range []struct {
		what  string
		names []string
		known func(context.Context) ([]string, error)
	}{
		{"event type", filter.EventTypes, a.KnownTypes},
		{"handler", handlers, a.KnownHandlers},
		{"channel", filter.Channels, a.KnownChannels},
		{"generation", generations, a.KnownGenerations},
	} {
		if len(asked.names) == 0 {
			continue
		}
		known, err := asked.known(ctx)
		if err != nil {
			return
		}
		for _, name := range asked.names {
			if slices.Contains(known, name) {
				continue
			}
			meant := didYouMean(nearest(name, known))
			if asked.what == "generation" { // a number is not meant for being like another
				meant = ""
				if len(known) > 0 {
					meant = ": the latest are " + strings.Join(known[:min(len(known), mostMeant)], ", ")
				}
			}
			_, _ = fmt.Fprintf(p.Stderr, "%s %s is not known to this database%s\n", asked.what, visible(name), visible(meant))
		}
	}
}

// tellingTimeout bounds looking for what is known.
const tellingTimeout = 2 * time.Second

// unknownFlag refuses what is not the name of a flag of cmd, with those that may be meant, also by who gives a name one dash. Of a group that is
// given something else before, it is the command that is not known.
func unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	if before := cmd.Flags().Args(); cmd.HasSubCommands() && len(before) > 0 {
		return unknownCommand(cmd, before)
	}
	name, typed := unknown.GetSpecifiedName(), "--"+unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); letters != "" {
		name, _, _ = strings.Cut(letters, "=")
		typed = "-" + name
	}
	var known []string
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			known = append(known, flag.Name)
		}
	})
	meant := nearest(name, known)
	for i := range meant {
		meant[i] = "--" + meant[i]
	}
	return usageError{fmt.Errorf("unknown flag %.60s for %q%s; see `%s --help`", typed, cmd.CommandPath(), didYouMean(meant), cmd.CommandPath())}
}
