// Package top is the terminal view of `workers top`: what the database says of this moment, in a frame that is read
// again each second. Its model changes by messages alone, and a frame is a function of the model and a size, so
// that tests need no terminal. It acts only through a plan that the person confirms.
//
//	model.go    Model: messages, what is asked when, lost databases
//	keys.go     what keys do
//	tables.go   the views as tables
//	table.go    a table: columns that fit, sorting, filter
//	event.go    one event as lines
//	plan.go     replay, discard and pause: what would happen, its command, the confirmation
//	frame.go    a frame: head, what needs attention, table, foot, help
//	text.go     numbers, ages and bars as text that is safe for a terminal
//	program.go  the program in a terminal
package top
