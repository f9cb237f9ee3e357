package app

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"spectral/db"
)

// EffectivePrivileges returns what our roles and PUBLIC may do with our objects, in sorted lines, whose form is
// explained at the top of db/privileges.txt. The connection may be any login's and must not be in a transaction.
func EffectivePrivileges(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	return inCatalogs(ctx, conn, readPrivileges)
}

func readPrivileges(ctx context.Context, tx pgx.Tx) ([]string, error) {
	schemas, roles := privilegeScope(declaredPrivileges())
	rows, err := tx.Query(ctx, db.PrivilegesQuery, schemas, roles)
	if err != nil {
		return nil, err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	slices.Sort(lines)
	return slices.Compact(lines), err
}

// ComparePrivileges compares the effective privileges with db/privileges.txt. A missing line stops something that
// should work; an unexpected one allows something that was not decided.
func ComparePrivileges(ctx context.Context, conn *pgx.Conn) (missing, unexpected []string, err error) {
	effective, err := EffectivePrivileges(ctx, conn)
	if err != nil {
		return nil, nil, err
	}
	declared := declaredPrivileges()
	return without(declared, effective), without(effective, declared), nil
}

// Roles returns the group roles of this build.
func Roles() []string {
	_, roles := privilegeScope(declaredPrivileges())
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
func privilegeScope(declared []string) (schemas, roles []string) {
	schemas, roles = []string{}, []string{}
	for _, line := range declared {
		switch words := strings.Fields(line); words[0] {
		case "schema":
			schemas = append(schemas, words[1])
		case "role":
			roles = append(roles, words[1])
		}
	}
	return schemas, roles
}
