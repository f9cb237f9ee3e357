package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"spectral/db"
)

const usage = `usage: make event NAME=CONTEXT.NOUN.VERB TO=CONTEXT [FIELDS="NAME:KIND ..."]
  like make event NAME=platform.memory.retired TO=worlds FIELDS="memory_id:uuid version:int retired_at:time"
  CONTEXT is platform or worlds; KIND is uuid, text, int, number, bool or time
  the first field identifies what the event is about; of a field version:int the highest value stays`

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs one command in the current folder, the repository's root.
func run(out io.Writer, arguments []string) error {
	switch {
	case len(arguments) == 1 && arguments[0] == "functions":
		return db.WriteMigrations("db")
	case len(arguments) == 4 && arguments[0] == "event":
		e, err := newEvent(arguments[1], arguments[2], arguments[3])
		if err != nil {
			return fmt.Errorf("%w\n%s", err, usage)
		}
		written, err := e.write(".")
		if err != nil {
			return err
		}
		for _, file := range written {
			_, _ = fmt.Fprintln(out, file)
		}
		_, err = fmt.Fprintf(out, next, e.Name, e.Name, e.Name)
		return err
	default:
		return errors.New(usage)
	}
}

const next = `
Next:
  1. say what each field means, where these files have TODO
  2. call application.Publish%s in the unit of work that the event tells of
  3. make generate
  4. go test ./tests/integration -run Test%sArrives
  5. change what %sRecorder does, and its table
`
