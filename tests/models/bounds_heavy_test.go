//go:build heavy && !soak

package models_test

// Most models are small: optimizing takes longer than running them.
const (
	full     = false
	optimize = "-O0"
	hash     = "-w19" // clearing a larger table takes longer than a small model
)
