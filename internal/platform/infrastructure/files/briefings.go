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

	"github.com/google/uuid"

	"spectral/internal/core/check"
	"spectral/internal/platform/application"
)

// Briefings writes each briefing to a file in Dir that is named after its task. Safe for concurrent use, by any number
// of processes.
type Briefings struct{ Dir string }

// Deliver implements [application.Briefings]. It writes the file completely or not at all, and replaces an earlier one.
// A killed process leaves a hidden file.
func (b Briefings) Deliver(ctx context.Context, briefing application.Briefing) (place string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	folder, err := b.open()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	name := briefing.Task.String() + ".md"
	partial, err := write(folder, "."+briefing.Task.String(), briefing.Text)
	if err != nil {
		return "", err
	}
	if err := folder.Rename(partial, name); err != nil {
		return "", errors.Join(err, folder.Remove(partial))
	}
	return filepath.Join(b.Dir, name), sync(folder)
}

// Check makes the folder unless it exists, and returns why briefings cannot be delivered to it, or nil.
func (b Briefings) Check() error {
	folder, err := b.open()
	if err != nil {
		return err
	}
	probe, err := write(folder, ".check", "")
	if err == nil {
		err = folder.Remove(probe)
	}
	return errors.Join(err, folder.Close())
}

// open makes the folder unless it exists. It refuses one in which another user could have placed a link to a file of
// this one's.
func (b Briefings) open() (*os.Root, error) {
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return nil, err
	}
	info, err := os.Lstat(b.Dir)
	if err == nil {
		err = check.PrivateFolder(b.Dir, info)
	}
	if err != nil {
		return nil, err
	}
	return openChecked(b.Dir, info)
}

// openChecked opens the folder that info is of.
func openChecked(dir string, info fs.FileInfo) (*os.Root, error) {
	folder, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	opened, err := folder.Stat(".")
	if err == nil && !os.SameFile(info, opened) {
		err = fmt.Errorf("%s was replaced while it was opened", dir)
	}
	if err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	return folder, nil
}

// write writes a new file, whose name begins with prefix, and returns its name. Another run may still write its own.
func write(folder *os.Root, prefix, text string) (name string, err error) {
	name = prefix + "." + uuid.NewString() + ".tmp"
	file, err := folder.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return "", errors.Join(err, folder.Remove(name))
	}
	return name, nil
}

// sync makes a rename durable.
func sync(folder *os.Root) error {
	dir, err := folder.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
