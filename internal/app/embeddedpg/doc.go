// Package embeddedpg runs a PostgreSQL server for `workers demo`, `workers run --embedded` and the tests. It needs
// PostgreSQL's programs, not a configured server.
//
// It owns one folder per server:
//
//	<folder>/lock         locked by the program that runs the server
//	<folder>/data         PostgreSQL's data directory
//	<folder>/password     the superuser's password, mode 0600
//	<folder>/server.log   emptied at each start
//	<folder>/new          a data directory that initdb has not completed
//
// What it promises:
//
//   - One server per folder: a second Start fails.
//   - The server of a program that was killed is stopped by the next Start on the folder, which reads its number
//     in postmaster.pid and makes sure that it is a server on this data.
//   - When Start fails or its context ends, no process is left.
//   - The server listens on 127.0.0.1 only and asks for a random password, so other users of the machine do not get in.
//   - Started by root, which PostgreSQL refuses, the server runs as `postgres` or else `nobody`.
//   - Data of another major version are refused; Fresh replaces them.
//
// Only internal/app and tests may import it. It imports nothing else of ours.
package embeddedpg
