// Package cli is the command line of cmd/workers: flags and settings in, one clear line per error
// out. Results go to stdout, everything else to stderr. Exit codes: 0 fine, 1 failed, 2 called
// wrongly, 3 something needs attention.
package cli
