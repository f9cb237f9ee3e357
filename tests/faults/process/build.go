package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

const buildTimeout = 5 * time.Minute // for a loaded machine and an empty build cache

// Binary is the built cmd/workers. A test binary needs one; call Remove at its end.
type Binary struct {
	once sync.Once
	dir  string
	err  error
}

// Path returns the binary's path, and builds it at the first call.
func (b *Binary) Path(t testing.TB) string {
	t.Helper()
	b.once.Do(func() { b.dir, b.err = build() })
	if b.err != nil {
		t.Fatalf("build cmd/workers: %v", b.err)
	}
	return filepath.Join(b.dir, "workers")
}

// Remove deletes the binary.
func (b *Binary) Remove() error {
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

func build() (dir string, err error) {
	dir, err = os.MkdirTemp("", "spectral-workers-")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	// Git may refuse to stamp a checkout that another user owns.
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false",
		"-o", filepath.Join(dir, "workers"), "spectral/cmd/workers")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("%w\n%s", err, output), os.RemoveAll(dir))
	}
	return dir, nil
}
