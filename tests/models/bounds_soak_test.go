//go:build heavy && soak

package models_test

const (
	full     = true
	optimize = "-O1"
	hash     = "-w22"
)
