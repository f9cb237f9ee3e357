// Package files writes the briefings of platform to a folder. This is outside any transaction, so a second delivery of
// a briefing has the same result as the first.
package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/google/uuid"

	"spectral/internal/platform/application"
)

// Briefings writes each briefing to a file named after its task. Safe for concurrent use, by any number of processes.
type Briefings struct{ dir string }

// NewBriefings returns Briefings that write to dir. Deliver creates dir.
func NewBriefings(dir string) *Briefings { return &Briefings{dir: dir} }

// Deliver implements [application.Briefings]. It writes the file completely or not at all, and replaces an earlier one.
func (b *Briefings) Deliver(ctx context.Context, briefing application.Briefing) (place string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return "", fmt.Errorf("folder of the briefings: %w", err)
	}
	place = filepath.Join(b.dir, briefing.Task.String()+".md")
	partial := filepath.Join(b.dir, hidden(briefing.Task, strconv.FormatInt(briefing.Run, 10)))
	if err = writeSynced(partial, briefing.Text); err == nil {
		err = os.Rename(partial, place)
	}
	if err != nil {
		_ = os.Remove(partial) // best effort: a later run removes it
		return "", err
	}
	if err := syncFolder(b.dir); err != nil {
		return "", err
	}
	b.clear(briefing)
	return place, nil
}

// clear removes temporary files of earlier runs. An earlier run that is still writing then fails. Errors are ignored,
// because the briefing is delivered.
func (b *Briefings) clear(briefing application.Briefing) {
	names, _ := fs.Glob(os.DirFS(b.dir), hidden(briefing.Task, "*"))
	for _, name := range names {
		var run int64
		if _, err := fmt.Sscanf(name, hidden(briefing.Task, "%d"), &run); err == nil && run < briefing.Run {
			_ = os.Remove(filepath.Join(b.dir, name))
		}
	}
}

// hidden returns the name of the temporary file of a run. Each run has its own, because an earlier run may still write.
func hidden(task uuid.UUID, run string) string { return "." + task.String() + "." + run + ".tmp" }

func writeSynced(name, text string) (err error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.WriteString(text); err != nil {
		return err
	}
	return file.Sync()
}

// syncFolder makes a rename durable.
func syncFolder(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
