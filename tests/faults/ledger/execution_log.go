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

// ExecutionLog is a file in which executors record what they do. Each line is written with one call, so several
// processes may append to it, and may be killed at any time.
type ExecutionLog string

// Execution is one call of an executor.
type Execution struct {
	ID      string
	Worker  string // the worker_id of its process
	PID     int
	Handler string
	EventID string
	Key     string
	Started time.Time // by the machine's clock, which the database shares
	// Result is [Done] or the error's text. It is empty if the process ended first.
	Result string
}

// Done is the result of an execution that succeeded.
const Done = "done"

// Append writes e as it is now. Call it when the execution starts, which counts as its effect, and when it has ended.
func (d ExecutionLog) Append(e Execution) error {
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

// Read returns the executions in the order in which they started.
func (d ExecutionLog) Read() ([]Execution, error) {
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
			return nil, fmt.Errorf("execution log: %q: %w", lines.Text(), err)
		}
		i, started := at[e.ID]
		switch {
		case e.Result == "" && started, e.Result != "" && !started:
			return nil, fmt.Errorf("execution log: %s does not start exactly once", e.ID)
		case started:
			all[i].Result = e.Result
		default:
			at[e.ID] = len(all)
			all = append(all, e)
		}
	}
	return all, lines.Err()
}
