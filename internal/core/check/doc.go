// Package check has what several packages share: checks of values, for the domains of the contexts, and of folders, and
// Visible, which makes a text safe for a terminal. A check returns an error that names the field or the folder, or nil.
// The package imports nothing of ours.
//
//	check.go    the checks
//	visible.go  Visible
package check
