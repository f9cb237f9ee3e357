// Package worker runs the consumers of one process: it starts and stops the notifier, the dispatchers and the
// maintenance. Only internal/app and tests import it.
//
//   - worker.go: a Worker, with its subscriptions, its start and its stop
//   - drain.go: waits until nothing of the worker's generation is left to do
package worker
