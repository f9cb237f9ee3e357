// Package files writes the briefings of platform to a folder. This is outside any transaction, so a second delivery of
// a briefing has the same result as the first.
package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"spectral/internal/platform/application"
)

// Briefings writes each briefing to a file in Dir that is named after its task. Safe for concurrent use, by any number
// of processes.
type Briefings struct{ Dir string }

// Deliver implements [application.Briefings]. It creates Dir, writes the file completely or not at all, and replaces an
// earlier one. A killed process leaves a hidden file.
func (b Briefings) Deliver(ctx context.Context, briefing application.Briefing) (place string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return "", fmt.Errorf("folder of the briefings: %w", err)
	}
	partial, err := os.CreateTemp(b.Dir, "."+briefing.Task.String()+".*.tmp") // another run may still write its own
	if err != nil {
		return "", err
	}
	place = filepath.Join(b.Dir, briefing.Task.String()+".md")
	_, err = partial.WriteString(briefing.Text)
	if err = errors.Join(err, partial.Sync(), partial.Close()); err == nil {
		err = os.Rename(partial.Name(), place)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(partial.Name()))
	}
	folder, err := os.Open(b.Dir)
	if err != nil {
		return "", err
	}
	return place, errors.Join(folder.Sync(), folder.Close()) // makes the rename durable
}
