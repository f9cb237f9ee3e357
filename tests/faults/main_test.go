package faults_test

import (
	"fmt"
	"os"
	"testing"

	"spectral/tests/faults/process"
	"spectral/tests/pgtest"
)

// workers is the real binary, built when a test first needs it.
var workers process.Binary

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		os.Exit(runWorker())
	}
	code := pgtest.Run(m)
	if err := workers.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
