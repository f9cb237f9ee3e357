package cli

import (
	"encoding/csv"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// errEmpty refuses a flag without a value: a variable of a script that has come to nothing must not ask for everything.
var errEmpty = errors.New("want a value that is not empty, or leave the flag out")

// given is a flag whose text is never empty.
type given struct{ text string }

// Set implements [pflag.Value].
func (g *given) Set(text string) error {
	if text == "" {
		return errEmpty
	}
	g.text = text
	return nil
}

// String implements [pflag.Value].
func (g *given) String() string { return g.text }

// Type implements [pflag.Value].
func (g *given) Type() string { return "string" }

// givens is a flag that may be given several times, or with several values joined by commas, as pflag's string slices
// may; but none of the values is empty.
type givens struct{ texts []string }

// Set implements [pflag.Value].
func (g *givens) Set(text string) error {
	if text == "" {
		return errEmpty
	}
	lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return err
	}
	if len(lines) != 1 {
		return errors.New("want values joined by commas, on one line")
	}
	if slices.Contains(lines[0], "") {
		return errEmpty
	}
	g.texts = append(g.texts, lines[0]...)
	return nil
}

// String implements [pflag.Value].
func (g *givens) String() string { return strings.Join(g.texts, ",") }

// Type implements [pflag.Value].
func (g *givens) Type() string { return "stringSlice" }

// textsFlag adds a flag of givens.
func textsFlag(flags *pflag.FlagSet, name, usage string) *[]string {
	value := new(givens)
	flags.Var(value, name, usage)
	return &value.texts
}

// textFlag adds a flag of a given.
func textFlag(flags *pflag.FlagSet, name, usage string) *string {
	value := new(given)
	flags.Var(value, name, usage)
	return &value.text
}
