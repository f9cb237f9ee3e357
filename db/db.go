// Package db holds what a deployment needs of the database: the goose migrations, one numbered
// file per step, and the schema and privileges they must come to. Package internal/app runs the first and
// compares the others; sqlc reads migrations and queries as files.
package db

import "embed"

// Migrations are the goose migrations, in folder migrations.
//
//go:embed migrations/*.sql
var Migrations embed.FS

// Privileges is the list of who may do what, one privilege a line; the file's head explains it.
//
//go:embed privileges.txt
var Privileges string

// Schema is what the migrations come to, object by object, as the catalogs have it.
//
//go:embed schema.txt
var Schema string
