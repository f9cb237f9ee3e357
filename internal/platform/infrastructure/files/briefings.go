package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"spectral/internal/platform/application"
)

// Briefings writes each briefing to a file of its own in a folder, named after its task. Safe for concurrent use, by
// any number of processes.
type Briefings struct{ dir string }

// NewBriefings delivers to dir, which is made when it is first needed.
func NewBriefings(dir string) *Briefings { return &Briefings{dir: dir} }

// Deliver implements [application.Briefings]. The file is there whole or not at all, and the same again replaces it.
func (b *Briefings) Deliver(ctx context.Context, briefing application.Briefing) (place string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return "", fmt.Errorf("folder of the briefings: %w", err)
	}
	place = filepath.Join(b.dir, briefing.Task.String()+".md")
	hidden := b.hidden(briefing, strconv.FormatInt(briefing.Run, 10))
	if err = writeSynced(hidden, briefing.Text); err == nil {
		err = os.Rename(hidden, place)
	}
	if err != nil {
		_ = os.Remove(hidden) // or the next run does
		return "", err
	}
	if err := syncFolder(b.dir); err != nil {
		return "", err
	}
	b.clear(briefing)
	return place, nil
}

// hidden is where a run writes before the file is whole. A run of its own name each: another may be a zombie that
// writes still.
func (b *Briefings) hidden(briefing application.Briefing, run string) string {
	return filepath.Join(b.dir, "."+briefing.Task.String()+"."+run+".tmp")
}

// clear removes what earlier runs left behind that died while they wrote. One that is still writing fails: it is no
// longer wanted. The briefing is delivered by now, so what cannot be removed stays.
func (b *Briefings) clear(briefing application.Briefing) {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return
	}
	before, after, _ := strings.Cut(filepath.Base(b.hidden(briefing, "*")), "*")
	for _, entry := range entries {
		name, ok := strings.CutPrefix(entry.Name(), before)
		if !ok {
			continue
		}
		run, err := strconv.ParseInt(strings.TrimSuffix(name, after), 10, 64)
		if err == nil && run < briefing.Run {
			_ = os.Remove(filepath.Join(b.dir, entry.Name()))
		}
	}
}

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

// syncFolder makes a rename last.
func syncFolder(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
