// Package notify wakes consumers when events are due. Notifications only save time: with every one lost, polls find the
// same events (docs/decisions/0003).
//
//   - notifier.go: the loop that waits for notifications, polls and wakes; also without a connection
//   - listen_conn.go: the LISTEN connection, with its pings and self-tests
//   - health.go: the state of the notifier and the reason for it
//
// The states:
//
//	starting ──not connected──> reconnecting ──30 s, or notifications lost──> polling
//	   │                         │        ^                                    │
//	   │ self-test received      │ self-  │ connection                         │ self-test received
//	   v                         v test   │ lost                               │
//	listening <──────────────────┴────────┘ <──────────────────────────────────┘
//	   └──────────────────── self-test not received: notifications are lost ──> polling
//
// In every state but listening, events wait for the poll, which goes on through the pool.
package notify
