// Package process runs workers as separate processes, the real binary or the test binary, and sends them signals:
// SIGTERM, SIGKILL, SIGSTOP. A Supervisor restarts them.
//
// A process is killed when its test ends, and on Linux when the test binary ends. Its stderr is read as log entries,
// for which tests wait.
//
//   - build.go: building the binary
//   - process.go: a process, its signals and its end
//   - log.go: its log entries
//   - supervisor.go: restarts
package process
