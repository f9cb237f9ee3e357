// Package embeddedpg runs a PostgreSQL server of our own: for `workers demo`, for `workers run --embedded`
// and for the test suites. It needs PostgreSQL's programs, not a configured server.
//
// It owns one folder per server and the processes in it:
//
//	<folder>/lock                     flock'd by the program that runs the server
//	<folder>/<major>/data             PostgreSQL's data directory
//	<folder>/<major>/password         the superuser's password, mode 0600
//	<folder>/<major>/server.log       emptied at each start
//	<folder>/<major>.new-*, .old-*    a cluster being made or being deleted; leftovers are removed
//
// What it promises:
//
//   - One server per folder: a second Start fails with a *BusyError.
//   - Whatever a crashed program left behind (a running server, a stale postmaster.pid, a half-made cluster) is
//     cleaned up by the next Start; a process that is not a server on this folder's data is never signalled.
//   - When Start fails or its context ends, nothing is left running. On Linux a killed program takes its
//     server with it; elsewhere the server stays until the next Start on the folder.
//   - The server listens on 127.0.0.1 only, and asks for a random password, so that other users of the machine
//     do not get in.
//   - Started by root, which PostgreSQL refuses, the server runs as `postgres` or else `nobody`. Modes of folders
//     that this package did not create are not changed.
//   - An upgrade of PostgreSQL to another major version starts with a new, empty cluster beside the old one.
//
// Only internal/app and tests may import it. It imports nothing else of ours.
package embeddedpg
