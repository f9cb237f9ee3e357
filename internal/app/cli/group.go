package cli

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// group makes cmd one that only has others: called alone it asks which, and one that it does not have is a wrong call,
// with those that may be meant.
func group(cmd *cobra.Command, which string) {
	cmd.Args = unknownCommand
	cmd.RunE = func(*cobra.Command, []string) error { return usageError{errors.New(which)} }
}

// unknownCommand refuses what is not the name of a command of cmd.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = farthestName
	return usageError{fmt.Errorf("unknown command %.60q for %q%s; see `%s --help`", args[0], cmd.CommandPath(),
		didYouMean(cmd.SuggestionsFor(args[0])), cmd.CommandPath())}
}

// noArguments refuses arguments of a command that takes none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usageError{fmt.Errorf("%q takes no arguments, and is given %.60q; see `%s --help`", cmd.CommandPath(), args[0], cmd.CommandPath())}
}

// farthestName is how many letters may be wrong, missing or too many in a name for another one to be what was meant.
const farthestName = 2

// mostMeant is how many names are said to be what may have been meant.
const mostMeant = 3

// didYouMean says what may have been meant, if anything.
func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ": did you mean " + strings.Join(names[:min(len(names), mostMeant)], ", or ") + "?"
}

// nearest are those of the known names that one that is not among them may stand for, as cobra finds a command that is meant; only the
// nearest of them, and for a short name none that shares less than half of it.
func nearest(name string, known []string) []string {
	names := &cobra.Command{}
	for _, k := range known {
		names.AddCommand(&cobra.Command{Use: k, Run: func(*cobra.Command, []string) {}})
	}
	for names.SuggestionsMinimumDistance = range min(farthestName, utf8.RuneCountInString(name)/2) + 1 {
		if meant := names.SuggestionsFor(name); len(meant) > 0 {
			return meant
		}
	}
	return nil
}
