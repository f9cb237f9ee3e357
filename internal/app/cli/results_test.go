package cli

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

// full is a disk that is.
type full struct{ reason error }

func (f full) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: f.reason}
}

// A result that nobody can read is a failure, whoever printed it; but one that nobody wants to read to its end makes no noise.
func TestResultsThatAreNotWritten(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"version", "--json"}, {"--help"}, {"events", "list", "--help"}, {"completion", "bash"}} {
		var stderr bytes.Buffer
		p := Process{Stdin: strings.NewReader(""), Stdout: full{syscall.ENOSPC}, Stderr: &stderr, Getenv: func(string) string { return "" }}
		if code := Main(t.Context(), p, args); code != exitFailed || stderr.String() != "workers: write the result: no space left on device\n" {
			t.Errorf("%v exits with %d: %s", args, code, stderr.String())
		}
		stderr.Reset()
		p.Stdout = full{syscall.EPIPE}
		if code := Main(t.Context(), p, args); code != exitFailed || stderr.Len() > 0 {
			t.Errorf("%v exits with %d: %s", args, code, stderr.String())
		}
	}
}

// What a command failed by is told beside that its result was not; what it has found is not, for that is in the result.
func TestOutcome(t *testing.T) {
	t.Parallel()
	refused := usageError{errors.New("no")}
	fine := &results{to: new(bytes.Buffer)}
	for _, err := range []error{nil, refused} {
		if untold, have := fine.outcome(err); untold || have != err { //nolint:errorlint // the very error
			t.Errorf("%v became %v", err, have)
		}
	}
	broken := &results{to: full{syscall.ENOSPC}}
	if _, err := broken.Write(nil); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("it was written, %v", err)
	}
	if untold, err := broken.outcome(attentionError{errors.New("busy")}); !untold || errors.As(err, new(attentionError)) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("what was found became %v", err)
	}
	if untold, err := broken.outcome(refused); untold || !errors.Is(err, refused) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a failure became %v", err)
	}
}
