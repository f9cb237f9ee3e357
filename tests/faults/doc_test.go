// Package faults_test kills, freezes, disconnects and restarts workers, networks and servers, and compares the result
// with a ledger kept outside the database. It runs the real binary, built once, or, for handlers that misbehave, the
// test binary itself as a worker (worker_test.go).
//
// The packages proxy, process, server and ledger cause the faults and record what happened. Tests of more than a few
// seconds have the build tag heavy. Random choices come from a number that the test logs; set SPECTRAL_FAULTS_SEED to
// repeat them.
package faults_test
