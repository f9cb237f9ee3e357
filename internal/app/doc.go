// Package app composes the service: settings, database checks and migrations, the list of
// contracts, the consumer builders, and the fx modules of a worker. It is the only package that
// imports every context, and with its subpackages the only one that knows fx.
//
//	cli         the command line
//	demo        what `workers demo` does
//	embeddedpg  runs a Postgres server
package app
