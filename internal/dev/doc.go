// Command dev has what developers of this repository run through make: `go run ./internal/dev event` writes the files
// of a new event, and `go run ./internal/dev functions` writes the function sources of db/functions into the
// migrations. It is no part of the product and imports nothing of it except package db, so that it runs while the rest
// does not compile.
//
//   - main.go      the commands
//   - event.go     the scaffold of a new event: names, fields, files
//   - templates/   what the scaffold writes, one template for each file
package main
