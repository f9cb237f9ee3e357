// Package postgres carries events through core.outbox: the publisher and unit of work on the
// producer's side, the listener with its doorbell and consumers on the other.
//
// It promises what package events promises. How, in the order of an event's life:
//
//   - [Publisher] checks envelopes against the contracts and hands them to
//     core.outbox_publish_many in the caller's transaction.
//   - The doorbell holds the process's one LISTEN connection. Notifications are latency only: with
//     every one lost, the poll finds the same rows. It runs LISTEN, proves with a notification of its
//     own that they arrive, then looks, and sleeps only after core.outbox_quiet said that no silent
//     producer is in its commit (docs/decisions/0003).
//   - A consumer, one per event type, claims due rows with SKIP LOCKED and dispatches them: key in
//     core.event_handled, handlers as their context's role, settle, commit, in one transaction.
//   - A leased consumer commits its claims under tokens, renews them while the work goes on, and settles
//     where the token still holds; the reaper re-pends what ran out (docs/decisions/0011).
//
// States of the doorbell, with the reason of each in [Health]:
//
//	starting ──not connected──> reconnecting ──30 s without, or deaf──> polling
//	   │                         │        ^                                │
//	   │ heard itself            │ heard  │ lost                           │ heard itself
//	   v                         v itself │                                │
//	listening <──────────────────┴────────┘ <──────────────────────────────┘
//	   └──────────────────── deaf: its notification did not arrive ──> polling
//
// In all but listening, events wait for the poll, which goes on through the pool.
//
// Only package internal/app and tests import it.
package postgres
