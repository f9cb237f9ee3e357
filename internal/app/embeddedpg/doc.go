// Package embeddedpg runs a PostgreSQL server for `workers demo`, `workers run --embedded` and the tests. It needs
// PostgreSQL's programs and no configured server.
//
// Each server has one folder:
//
//	<folder>/lock         locked by the process that runs the server
//	<folder>/data         PostgreSQL's data directory
//	<folder>/password     the superuser's password, mode 0600
//	<folder>/server.log   the server's output since its last start
//	<folder>/new          a data directory that is not complete
//
// The files:
//
//   - server.go: starts and stops a server
//   - folder.go: folders, locks, data directories, and what a killed process leaves
//   - programs.go: finds or downloads PostgreSQL's programs, and finds the user that runs them
//
// Promises:
//
//   - A folder has one server: a second Start fails.
//   - The next Start on a folder stops the server of a killed process.
//   - When Start fails or its context ends, no process is left.
//   - The server listens on 127.0.0.1 only and asks for a random password.
//   - When root starts the server, it runs as the user postgres or else nobody, because PostgreSQL refuses root.
//   - Data of another major version are refused; Fresh replaces them.
//
// Only internal/app and tests may import it. It imports nothing else of ours.
package embeddedpg
