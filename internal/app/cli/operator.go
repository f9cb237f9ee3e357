package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres/admin"
)

// operating wraps a command of operators: DATABASE_URL in, an Admin for the time it runs.
func operating(p Process, do func(cmd *cobra.Command, args []string, a *admin.Admin) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		url, err := app.ReadDatabaseURL(p.Getenv)
		if err != nil {
			return err
		}
		a, closeAdmin, err := app.OpenAdmin(cmd.Context(), url)
		if err != nil {
			return err
		}
		defer closeAdmin()
		return do(cmd, args, a)
	}
}

// by adds the flag that says who acts. Left out it is USER, or the user that this process runs as, and if neither is a name, the login, for
// which the empty text stands.
func by(cmd *cobra.Command, p Process) *string {
	who := &saying{most: 256, form: "without blanks around it", fits: func(s string) bool { return s == strings.TrimSpace(s) }}
	if who.Set(p.Getenv("USER")) != nil {
		_ = who.Set(p.Username)
	}
	cmd.Flags().Var(who, "by", "who acts, for core.operator_actions; if left out, the user of this process, or else the login")
	return &who.text
}

// reasonFlag adds the flag that says why somebody acts.
func reasonFlag(cmd *cobra.Command) *string {
	reason := &saying{most: 1024, form: "not blank", fits: func(s string) bool { return strings.TrimSpace(s) != "" }}
	cmd.Flags().Var(reason, "reason", "why, for those who ask later")
	return &reason.text
}

// saying is a flag whose text core.operator_actions takes.
type saying struct {
	text string
	most int // bytes
	form string
	fits func(string) bool
}

// Set implements [pflag.Value].
func (s *saying) Set(text string) error {
	if text == "" || len(text) > s.most || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) || !s.fits(text) {
		return fmt.Errorf("want 1 to %d bytes without control characters, %s, or leave it out", s.most, s.form)
	}
	s.text = text
	return nil
}

// String implements [pflag.Value].
func (s *saying) String() string { return s.text }

// Type implements [pflag.Value].
func (s *saying) Type() string { return "string" }

// jsonFlag adds --json.
func jsonFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print JSON")
}

// consent asks whether to go on, unless yes says so already. Anything but y or yes is no, and nothing is done.
// Without anybody to ask it is a wrong call. The end of ctx is a no, too.
func consent(ctx context.Context, p Process, yes bool, question string) error {
	if yes {
		return nil
	}
	_, _ = fmt.Fprintf(p.Stderr, "%s [y/N] ", question)
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() { // which nothing but an answer ends
		text, err := bufio.NewReader(p.Stdin).ReadString('\n')
		read <- line{text, err}
	}()
	var answer line
	select {
	case answer = <-read:
	case <-ctx.Done():
		_, _ = fmt.Fprintln(p.Stderr)
		return errNotConfirmed
	}
	if answer.err != nil && answer.text == "" {
		_, _ = fmt.Fprintln(p.Stderr)
		return usageError{errors.New("nobody answered, and nothing was done: answer y, or pass --yes")}
	}
	switch strings.ToLower(strings.TrimSpace(answer.text)) {
	case "y", "yes":
		return nil
	default:
		return errNotConfirmed
	}
}

var errNotConfirmed = errors.New("not confirmed: nothing was done")

// notDone says of a dry run that it was one: on stderr, for what it has shown is the result.
func notDone(p Process) { _, _ = fmt.Fprintln(p.Stderr, "dry run: nothing was done") }

// coloured reports whether results may have colours: stdout is a terminal that can, and nobody has said no
// (no-color.org).
func coloured(p Process) bool {
	_, ok := terminalOf(p.Stdout)
	return ok && p.Getenv("NO_COLOR") == "" && p.Getenv("TERM") != "dumb"
}

var errInterrupted = errors.New("interrupted")

// rest waits, unless ctx ends before.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return errInterrupted
	}
}
