//go:build heavy && !soak

package models_test

// Most models are small: to optimize takes longer than to run them.
const (
	full     = false
	optimize = "-O0"
	hash     = "-w19" // small models fill no larger table, and clearing one takes longer than they do
)
