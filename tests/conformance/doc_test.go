// Package conformance_test holds publishers and listeners to what package events promises of them.
package conformance_test
