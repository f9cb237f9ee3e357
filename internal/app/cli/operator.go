package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"spectral/internal/app"
)

// operating returns the run function of a command that acts as an operator on DATABASE_URL.
func operating(p Process,
	do func(context.Context, []string, *app.Operator) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		url, err := app.ReadDatabaseURL(p.Getenv)
		if err != nil {
			return err
		}
		o, err := app.OpenOperator(cmd.Context(), url)
		if err != nil {
			return err
		}
		defer o.Close()
		return do(cmd.Context(), args, o)
	}
}

// consent asks whether to go on, unless yes is set. Any answer but y or yes, and the end of ctx, is a no.
func consent(ctx context.Context, p Process, yes bool, question string) error {
	if yes {
		return nil
	}
	_, _ = fmt.Fprintf(p.Stderr, "%s [y/N] ", question)
	answers := make(chan string, 1)
	go func() { // only an answer ends it
		answer, err := bufio.NewReader(p.Stdin).ReadString('\n')
		if err != nil && answer == "" {
			close(answers)
			return
		}
		answers <- answer
	}()
	select {
	case answer, ok := <-answers:
		if !ok {
			_, _ = fmt.Fprintln(p.Stderr)
			return usagef("no answer: nothing was done; answer y, or pass --yes")
		}
		if word := strings.ToLower(strings.TrimSpace(answer)); word == "y" || word == "yes" {
			return nil
		}
	case <-ctx.Done():
		_, _ = fmt.Fprintln(p.Stderr)
	}
	return errNotConfirmed
}

var (
	errNotConfirmed = errors.New("not confirmed: nothing was done")
	errInterrupted  = errors.New("interrupted")
)

// notDone prints on stderr that this was a dry run; what it showed is the result, on stdout.
func notDone(p Process) {
	p.notef("dry run: nothing was done; without --dry-run the command asks and does it")
}
