// Package cli is the command line of cmd/workers. Results go to stdout, everything else to stderr, and an error is one
// line that says what to do. Exit codes: 0 success, 1 failure, 2 wrong call, 3 something needs attention.
//
//	cli.go            Main, the root command, version; connecting as an operator, asking for consent
//	flags.go          flags, arguments, their parsers and completions
//	output.go         tables that fit the terminal, JSON, texts that are safe for a terminal
//	events.go         what operators read: events list, show and stats, actions list
//	events_explain.go why an event has not run: events explain
//	timeline.go       what workers counted: events stats --since
//	events_groups.go  failures that look the same: events groups, note, mute, unmute
//	operations.go     replays and discards of many events: operations list, show, pause, resume, abort
//	events_change.go  what they do: events replay, discard, undiscard, retry-now, pause, resume
//	handlers.go       breakers of handlers: handlers list, trip, close
//	top.go            the view in a terminal, which is package top
//	run.go            what starts workers: run, demo
//	console.go        the operators' web console: console
//	generation_compare.go
//	                  how a generation did beside another: generation compare
//	generation.go, retention.go, migrate.go, outbox.go, relay.go, doctor.go
//	                  the commands of those names; relay.go has --relay too
package cli
