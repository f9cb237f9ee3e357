// Package db embeds what a deployment needs for the database: the goose migrations, one numbered file per feature, the
// sources of their functions, the schema and privileges that result, and the queries that read those from a database.
// Package internal/app runs the migrations, compares databases with the result and repairs functions from their
// sources. sqlc reads migrations and queries as files.
package db

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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

// SchemaQuery reads from the catalogs what schema.txt declares.
//
//go:embed catalog/schema.sql
var SchemaQuery string

// PrivilegesQuery reads from the catalogs what privileges.txt declares.
//
//go:embed catalog/privileges.sql
var PrivilegesQuery string

// Functions are the sources of the functions, in folder functions: <name>.sql, with the triggers that call it and its
// grants.
//
//go:embed functions/*.sql
var Functions embed.FS

var edition = regexp.MustCompile(`Edition [0-9a-f]{16}`)

// Edition returns the hash of the migrations in files, as 16 hexadecimal digits, without the edition that they name.
// Until the first release migrations are edited in place; the comment on schema core says which edition made a
// database.
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

var commentLine = regexp.MustCompile(`(?m)^ *(--.*)?\n`)

// WithoutComments returns the source of a function as migrations and `workers migrate repair` have it: without comment
// lines and blank lines.
func WithoutComments(source string) string { return commentLine.ReplaceAllString(source, "") }

var functionPlace = regexp.MustCompile(`^create function \w+\.(\w+)`)

// WriteFunctions returns the text of a migration with its functions as their sources have them. A function's place
// begins with a line `create function SCHEMA.NAME` and goes to the next one, or to the end of goose's statement.
func WriteFunctions(text string, source func(name string) string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		if place := functionPlace.FindStringSubmatch(line); place != nil {
			b.WriteString(WithoutComments(source(place[1])))
			inside = true
		}
		inside = inside && line != "-- +goose StatementEnd\n"
		if !inside {
			b.WriteString(line)
		}
	}
	return b.String()
}

// WriteEdition returns the text of a migration with its edition set, unchanged if it names none.
func WriteEdition(text, to string) string { return edition.ReplaceAllString(text, "Edition "+to) }

// WriteMigrations writes the sources of functions below folder into its migrations, and the edition into the first of
// them.
func WriteMigrations(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "migrations", "*.sql"))
	if err != nil {
		return err
	}
	var missing error
	for _, file := range files {
		missing = errors.Join(missing, rewrite(file, func(text string) string {
			return WriteFunctions(text, func(name string) string {
				source, err := os.ReadFile(filepath.Join(folder, "functions", name+".sql"))
				missing = errors.Join(missing, err)
				return string(source)
			})
		}))
	}
	if missing != nil {
		return missing
	}
	edition, err := Edition(os.DirFS(folder))
	if err != nil {
		return err
	}
	return rewrite(files[0], func(text string) string { return WriteEdition(text, edition) })
}

// rewrite writes file only if its text changes.
func rewrite(file string, change func(string) string) error {
	have, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if want := change(string(have)); want != string(have) {
		return os.WriteFile(file, []byte(want), 0o644)
	}
	return nil
}
