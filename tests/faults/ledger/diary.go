package ledger

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Diary is a file in which leased work notes what it does outside the database, where nothing is ever undone.
// Each line is written at once and by itself, so that several processes may write, and die as they do.
type Diary string

// Execution is one call of an executor.
type Execution struct {
	ID      string
	Worker  string // the worker_id of its process
	PID     int
	Handler string
	EventID string
	Key     string
	Begun   time.Time // by the clock of the machine, which is the database's too
	// Ended is how it went: [Done], or what it was told or failed with. Empty: it did not come to its end.
	Ended string
}

// Done is the end of an execution that did what it should.
const Done = "done"

// Note writes e down as it is now: once as it begins, which is its effect on the world, and once
// when it has ended.
func (d Diary) Note(e Execution) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(string(d), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

// Read returns the executions in the order in which they began.
func (d Diary) Read() ([]Execution, error) {
	file, err := os.Open(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var all []Execution
	at := make(map[string]int)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var e Execution
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("diary: %q: %w", lines.Text(), err)
		}
		i, begun := at[e.ID]
		switch {
		case e.Ended == "" && begun, e.Ended != "" && !begun:
			return nil, fmt.Errorf("diary: execution %s has no beginning, or two", e.ID)
		case begun:
			all[i].Ended = e.Ended
		default:
			at[e.ID] = len(all)
			all = append(all, e)
		}
	}
	return all, lines.Err()
}
