// Package operator has what operators do with the events of core.outbox, and what they look at. The command line, the
// doctor, the console and the terminal view share it. It acts as the database role spectral_operator, or another one;
// its SQL functions write each change to core.operator_actions themselves. A call that they refuse returns a
// [*RefusedError], which says what to do.
//
//	client.go       Client: one transaction as an operator
//	filter.go       Filter: which events are meant, as SQL conditions
//	list.go         pages of events
//	show.go         all that is known of one event
//	causes.go       what caused an event, and what it caused
//	explain.go      why an event has not run
//	groups.go       failures that look the same
//	stats.go        counts of events by status, type and more
//	live.go         what the database says of this moment, by one statement
//	timeline.go     what workers counted in the last hours and days
//	live.go         what the database says of this moment
//	compare.go      how one generation did beside another
//	bulk.go         replay, discard, undiscard and retry-now of a selection, in batches
//	preview.go      what a replay would do
//	plan.go         the name of a plan, which binds a run to it
//	operations.go   replays and discards of many events, which workers carry on
//	handlers.go     handlers and their breakers
//	generations.go  deployment generations: status, drain, retire, adopt; pausing event types in them
//	live.go         the figures of this moment, by one statement
//	correct.go      corrected copies of failed events
//	words.go        how commands are written, and what people type is read
//	actions.go      what operators did
//	sessions.go     sessions with open transactions
//	relay.go        the path of events, and what a broker has
//	progress.go     what became of a workspace's events, for the demo
//	inspect.go      Inspector: the connection on which the doctor reads facts
//
// Only internal/app, the packages below it, and tests import it.
package operator
