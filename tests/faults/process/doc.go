// Package process runs workers as processes of their own, the real binary or the test binary as a test
// worker, and does to them what happens to processes: signals, kill -9, SIGSTOP, restarts.
//
// A process dies with the test that started it, and on Linux with the test binary. Its stderr is read
// as log entries, which tests await.
package process
