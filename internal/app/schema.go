package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"spectral/db"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// SchemaObject is an object of our schemas, as read from the catalogs.
type SchemaObject struct {
	Subject    string // its kind and name, to be used in SQL: "trigger outbox_notify on core.outbox"
	Definition string // in one line; the hash of a function
}

// ReadCatalogs returns our objects, in a fixed order, and what our roles and PUBLIC may do with them, in sorted lines
// whose form is explained at the top of db/privileges.txt. The connection may be any login's, and must not be in a
// transaction.
func ReadCatalogs(ctx context.Context, conn *pgx.Conn) (objects []SchemaObject, privileges []string, err error) {
	const begin = "begin isolation level repeatable read read only; " + operator.FixedSettings
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin})
	if err == nil {
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		objects, privileges, err = readCatalogs(ctx, tx)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read catalogs: %w", err)
	}
	return objects, privileges, nil
}

func readCatalogs(ctx context.Context, tx pgx.Tx) (objects []SchemaObject, privileges []string, err error) {
	schemas, roles := privilegeScope()
	rows, _ := tx.Query(ctx, db.SchemaQuery, schemas) // collecting returns the error
	if objects, err = pgx.CollectRows(rows, pgx.RowToStructByPos[SchemaObject]); err != nil {
		return nil, nil, err
	}
	for i, o := range objects {
		if strings.HasPrefix(o.Subject, "function ") {
			objects[i].Definition = hashOf(o.Definition)
		}
	}
	rows, _ = tx.Query(ctx, db.PrivilegesQuery, schemas, roles)
	privileges, err = pgx.CollectRows(rows, pgx.RowTo[string])
	slices.Sort(privileges)
	return objects, slices.Compact(privileges), err
}

// hashOf returns the hash of a function's definition. It sorts the SET clauses, of which Postgres keeps the order.
func hashOf(definition string) string {
	head, body, _ := strings.Cut(definition, "\nAS $")
	lines := strings.Split(head, "\n")
	slices.SortStableFunc(lines, func(a, b string) int {
		if !strings.HasPrefix(a, " SET ") || !strings.HasPrefix(b, " SET ") {
			return 0
		}
		return strings.Compare(a, b)
	})
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n") + "\nAS $" + body))
	return hex.EncodeToString(sum[:8])
}

// declaredSchema returns the schema of this build, by subject.
var declaredSchema = sync.OnceValue(func() map[string]string {
	declared := make(map[string]string)
	for line := range strings.Lines(db.Schema) {
		if subject, definition, found := strings.Cut(strings.TrimSpace(line), ": "); found && line[0] != '#' {
			declared[subject] = definition
		}
	}
	return declared
})

// InSchema reports whether an object is part of this build's schema.
func InSchema(subject string) bool {
	_, is := declaredSchema()[subject]
	return is
}

// Difference is a difference between a database and this build.
type Difference struct {
	Subject  string // an object of db/schema.txt, or a line of db/privileges.txt
	Is, Want string // definitions; Is is empty if it is missing, Want if it is unexpected
	Do       string // what to do about it, after a repair
}

// String returns what differs.
func (d Difference) String() string {
	switch {
	case d.Is == "":
		return d.Subject + " is missing"
	case d.Want == "":
		return d.Subject + " is unexpected"
	case strings.HasPrefix(d.Subject, "function "):
		return d.Subject + " is altered"
	default:
		return fmt.Sprintf("%s is altered: it is %s, and should be %s", d.Subject, d.Is, d.Want)
	}
}

// Table returns the table that the object is part of, empty for none.
func (d Difference) Table() string {
	if column, is := strings.CutPrefix(d.Subject, "column "); is {
		return column[:strings.LastIndex(column, ".")]
	}
	if part := partForm.FindStringSubmatch(d.Subject); part != nil {
		return part[1]
	}
	return ""
}

var partForm = regexp.MustCompile(`^(?:constraint|index|trigger|policy) .* on (\S+)$`)

// Compare compares a database with this build's db/schema.txt and db/privileges.txt. It leaves out what follows from
// another difference: parts of a table that is missing or unexpected, and privileges on such objects. The connection
// must not be in a transaction.
func Compare(ctx context.Context, conn *pgx.Conn) (schema, privileges []Difference, err error) {
	objects, lines, err := ReadCatalogs(ctx, conn)
	if err != nil {
		return nil, nil, err
	}
	schema, privileges = compare(objects, lines)
	return schema, privileges, nil
}

func compare(objects []SchemaObject, lines []string) (schema, privileges []Difference) {
	effective := make(map[string]string, len(objects))
	for _, o := range objects {
		effective[o.Subject] = o.Definition
	}
	declared := declaredSchema()
	all := maps.Clone(declared)
	maps.Copy(all, effective)
	wrong := make(map[string]bool) // objects that are missing or unexpected
	for _, subject := range slices.Sorted(maps.Keys(all)) {
		d := Difference{Subject: subject, Is: effective[subject], Want: declared[subject]}
		if sameDefinition(d.Is) != sameDefinition(d.Want) {
			schema = append(schema, d)
			wrong[subject] = d.Is == "" || d.Want == ""
		}
	}
	schema = slices.DeleteFunc(schema, func(d Difference) bool { return wrong["table "+d.Table()] })
	for _, line := range without(declaredPrivileges(), lines) {
		privileges = append(privileges, Difference{Subject: line, Want: line})
	}
	for _, line := range without(lines, declaredPrivileges()) {
		privileges = append(privileges, Difference{Subject: line, Is: line})
	}
	privileges = slices.DeleteFunc(privileges, func(d Difference) bool {
		o := objectForm.FindStringSubmatch(d.Subject)
		return o != nil && (wrong[o[2]+" "+o[3]] || wrong["table "+o[3]] || wrong["column "+o[3]+"."+o[1]])
	})
	return schema, privileges
}

// objectForm matches the object of a privilege: its column, kind and name.
var objectForm = regexp.MustCompile(`^(?:.*? \((\S+)\) on |.*? on |owner \S+ of |)` +
	`(table|view|sequence|schema|function) (\S+\(.*\)|\S+)( |$)`)

var qualifier = regexp.MustCompile(`\b[a-z0-9_]+\.`)

// sameDefinition returns a definition without what differs between versions of Postgres, and after a dump and restore:
// parentheses, and the qualifiers in the queries of views. It is not SQL.
func sameDefinition(definition string) string {
	if strings.HasPrefix(definition, "view ") {
		definition = qualifier.ReplaceAllString(definition, "")
	}
	return strings.NewReplacer("(", "", ")", "").Replace(definition)
}

// Roles returns the group roles of this build.
func Roles() []string {
	_, roles := privilegeScope()
	return roles
}

// without returns the lines that are not among others.
func without(lines, others []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(others, line) })
}

func declaredPrivileges() []string {
	var lines []string
	for line := range strings.Lines(db.Privileges) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// privilegeScope returns the schemas and roles of the declared lines. Others of ours are found by owner and by name, so
// that a new schema or group is not overlooked.
func privilegeScope() (schemas, roles []string) {
	for _, line := range declaredPrivileges() {
		switch words := strings.Fields(line); words[0] {
		case "schema":
			schemas = append(schemas, words[1])
		case "role":
			roles = append(roles, words[1])
		}
	}
	return schemas, roles
}
