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

const buildTimeout = 5 * time.Minute // a cold, shared machine

// Binary is cmd/workers, built when first asked for. One for each test binary; Remove it at the end.
type Binary struct {
	once sync.Once
	dir  string
	err  error
}

// Path builds the binary if need be and returns where it is.
func (b *Binary) Path(t testing.TB) string {
	t.Helper()
	b.once.Do(func() { b.dir, b.err = build() })
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

func build() (dir string, err error) {
	dir, err = os.MkdirTemp("", "spectral-workers-")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	// Without VCS stamps, for which git may refuse a checkout that is somebody else's.
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "workers"), "spectral/cmd/workers")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("%w\n%s", err, output), os.RemoveAll(dir))
	}
	return dir, nil
}
