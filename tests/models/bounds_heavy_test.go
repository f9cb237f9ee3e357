//go:build heavy && !soak

package models_test

// Most models are small: to optimize takes longer than to run them.
const (
	full     = false
	optimize = "-O0"
)
