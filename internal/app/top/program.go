package top

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Run shows the view in a terminal until the person quits or ctx ends.
func Run(ctx context.Context, client Client, o Options, in, out *os.File) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends questions that are open
	m := New(ctx, client, o, time.Now(), rand.Float64)
	program := tea.NewProgram(m, tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler())
	defer context.AfterFunc(ctx, program.Quit)()
	_, err := program.Run()
	if errors.Is(err, tea.ErrInterrupted) {
		err = nil
	}
	return err
}

// Once returns one frame of a width with all its rows.
func Once(ctx context.Context, client Client, o Options, width int) (string, error) {
	m := New(ctx, client, o, time.Now(), rand.Float64)
	live, err := client.Live(ctx)
	if err != nil {
		return "", err
	}
	m.take(answer{live: live, at: m.now})
	m.once = true
	return m.Frame(width, 0), nil
}
