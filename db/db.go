// Package db holds what a deployment needs of the database: the goose migrations, one numbered file per feature, the sources of
// their functions, and the schema and privileges that result. Package internal/app runs the migrations, compares databases with
// the result and repairs functions from their sources; sqlc reads migrations and queries as files.
package db

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"regexp"
)

// Migrations are the goose migrations, in folder migrations.
//
//go:embed migrations/*.sql
var Migrations embed.FS

// Privileges is the list of who may do what, one privilege a line; the file's head explains it.
//
//go:embed privileges.txt
var Privileges string

// Schema lists the objects that the migrations make, one a line; the file's head explains it.
//
//go:embed schema.txt
var Schema string

// Functions are the sources of the functions, in folder functions: <name>.sql, with the triggers that call it and its grants.
//
//go:embed functions/*.sql
var Functions embed.FS

var edition = regexp.MustCompile(`Edition [0-9a-f]{16}`)

// Edition is the hash of the migrations in files, 16 hexadecimal digits, whatever edition they themselves name. Until the first
// release migrations are edited in place; the comment on schema core says which edition made a database.
func Edition(files fs.FS) (string, error) {
	names, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return "", err
		}
		hash.Write(edition.ReplaceAll(text, []byte("Edition")))
	}
	return hex.EncodeToString(hash.Sum(nil)[:8]), nil
}

// WriteEdition returns the text of a migration with its edition set, unchanged if it names none.
func WriteEdition(text, to string) string { return edition.ReplaceAllString(text, "Edition "+to) }
