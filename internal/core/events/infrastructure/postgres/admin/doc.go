// Package admin is what operators do with the events of core.outbox: look at them, replay, discard, pause, and
// manage generations. It acts as the database role spectral_operator, whose every act the SQL functions write to
// core.operator_actions themselves.
//
// A refusal of the database is a [*RefusedError] that says what to do.
//
// Only package internal/app and tests import it.
package admin
