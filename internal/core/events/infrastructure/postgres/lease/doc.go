// Package lease handles events of leased subscriptions: a claim commits them as in flight, their handlers run outside
// any transaction while a heartbeat renews the leases, and a completer settles the results (docs/decisions/0011).
//
// An event passes through these files in this order:
//
//   - dispatcher.go: claims as many rows as may be in flight, holds their leases, and releases them at a stop
//   - lease.go: a lease: its claim, also when the answer was lost, its renewal and its release
//   - execution.go: runs the handlers of one lease
//   - completer.go: settles results, many in one transaction, or each by itself: the rows first, then the completions
package lease
