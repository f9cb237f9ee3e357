package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const buildTimeout = 5 * time.Minute // a cold, shared machine

// Binary is cmd/workers, built when first asked for. One for each test binary; Remove it at the end.
type Binary struct {
	// Alter changes the copy of the source tree that is built then; nil builds the tree itself.
	Alter func(tree string) error

	once sync.Once
	dir  string
	err  error
}

// Path builds the binary if need be and returns where it is.
func (b *Binary) Path(t testing.TB) string {
	t.Helper()
	b.once.Do(func() { b.dir, b.err = build(b.Alter) })
	if b.err != nil {
		t.Fatalf("build cmd/workers: %v", b.err)
	}
	return filepath.Join(b.dir, "workers")
}

// Remove deletes what was built.
func (b *Binary) Remove() error {
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

func build(alter func(tree string) error) (dir string, err error) {
	dir, err = os.MkdirTemp("", "spectral-workers-")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	// Without VCS stamps, for which git may refuse a checkout that is somebody else's.
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "workers"), "spectral/cmd/workers")
	if alter != nil {
		cmd.Dir = filepath.Join(dir, "tree")
		if err := copyTree(ctx, cmd.Dir); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
		if err := alter(cmd.Dir); err != nil {
			return "", errors.Join(fmt.Errorf("alter the tree: %w", err), os.RemoveAll(dir))
		}
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("%w\n%s", err, output), os.RemoveAll(dir))
	}
	return dir, nil
}

// copyTree copies what a build needs of the source tree.
func copyTree(ctx context.Context, to string) error {
	output, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the source tree: %w", err)
	}
	root := strings.TrimSpace(string(output))
	for _, folder := range []string{"cmd", "db", "internal"} {
		if err := os.CopyFS(filepath.Join(to, folder), os.DirFS(filepath.Join(root, folder))); err != nil {
			return fmt.Errorf("copy the source tree: %w", err)
		}
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(root, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, file), content, 0o600)
		}
		if err != nil {
			return fmt.Errorf("copy the source tree: %w", err)
		}
	}
	return nil
}
