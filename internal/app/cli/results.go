package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/term"
)

// results is standard output that remembers what went wrong: a command that could not say what it found has failed,
// whatever printed it. Safe for concurrent use.
type results struct {
	to  io.Writer
	mu  sync.Mutex
	err error
}

// Write implements [io.Writer]. After an error there are no more results.
func (r *results) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.to.Write(p)
	if err != nil {
		reason := err
		if path, ok := errors.AsType[*fs.PathError](err); ok { // its path is made up
			reason = path.Err
		}
		r.err = fmt.Errorf("write the result: %w", reason)
		err = r.err
	}
	return n, err
}

// failed is the error that ended the results, if one did.
func (r *results) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// outcome is the error of a command that ended with ended, and whether it is only that the result is untold: that all is fine,
// or what was found, is of no use then.
func (r *results) outcome(ended error) (untold bool, err error) {
	failed := r.failed()
	switch {
	case failed == nil:
		return false, ended
	case ended == nil, errors.Is(ended, failed), errors.As(ended, new(attentionError)):
		return true, failed
	default:
		return false, errors.Join(ended, failed)
	}
}

// terminalOf is the terminal that w writes to, if it is one.
func terminalOf(w io.Writer) (fd int, ok bool) {
	if r, wrapped := w.(*results); wrapped {
		w = r.to
	}
	file, ok := w.(*os.File)
	if !ok {
		return 0, false
	}
	fd = int(file.Fd())
	return fd, term.IsTerminal(fd)
}
