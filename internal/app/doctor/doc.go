// Package doctor looks once at everything that can be wrong with a database that carries events, and says for each
// finding what to do. It changes nothing; it sends one notification, on its own channel.
//
// It acts as the login of DATABASE_URL, which has to be a member of spectral_operator. What that login may not see is
// reported as unknown, never as fine. db/queries/doctor reads the facts, on a connection of package operator; this
// package judges them.
//
//	doctor.go    Examine: one pass, its report, the list of checks
//	server.go    the server, its settings, clock, connections and notifications
//	schema.go    migrations, schema, privileges, registered event types
//	backlog.go   generations, pauses, workers, leases, failures, retention
//	storage.go   snapshots, locks, vacuum, size
//	relay.go     the path of events, and what a broker has
package doctor
