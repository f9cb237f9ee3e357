// Package faults_test puts workers through what happens to processes, networks and servers, and holds
// a ledger kept outside the database against what comes out. It drives the real binary, built once, or,
// for handlers that misbehave, the test binary itself as a worker (worker_test.go).
//
// Its parts are packages: proxy, process, server, ledger. Tests of more than some seconds have the build
// tag heavy; what is random comes from a seed that the test logs, and SPECTRAL_FAULTS_SEED sets.
package faults_test
