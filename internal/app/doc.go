// Package app composes the service. It is the only package that imports every context, and with its subpackages the
// only one that knows fx.
//
//   - worker.go: the fx options of a worker: pools, publishing, consumers, maintenance
//   - consumers.go, consumers_tasks.go: the consumers
//   - contracts.go: the event contracts of every context
//   - usecases.go: the use cases with their repositories
//   - settings.go: the settings, from the environment
//   - database.go: the checks of a database before a command uses it
//   - migrate.go: runs the migrations
//   - schema.go: compares the schema and privileges of a database with this build
//   - repair.go: repairs functions, triggers, policies and privileges
//   - partition.go: makes core.outbox a table of monthly partitions, and takes that back
//   - relay.go: compares the paths of events, and empties the broker
//   - logging.go: the log, with its canonical fields; numbers with their nouns
//   - log_writer.go: log entries that never wait for who reads them
//   - telemetry.go: where spans and metrics go
//   - http.go: health, metrics and the console over HTTP
//   - console.go: the console's settings, login and connections
//   - sentry.go: reports events that became dead letters
//
// Subpackages: cli is the command line, console the operators' web console, doctor the checks of a database, demo what
// `workers demo` does; embeddedpg runs a Postgres server, embeddednats a NATS server.
package app
