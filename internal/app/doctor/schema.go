package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"spectral/db"
	"spectral/internal/app"
)

// migrations says which build's schema this is. Before an older one no pass begins.
func migrations(ctx context.Context, v *visit) (string, []Finding, error) {
	applied, latest, err := migrated(ctx, v)
	if err != nil {
		return "", nil, err
	}
	if applied > latest {
		return fmt.Sprintf("at %d; this build, at %d, is older and works on it", applied, latest), nil, nil
	}
	return fmt.Sprintf("at %d, as this build is", applied), nil, nil
}

func migrated(ctx context.Context, v *visit) (applied, latest int64, err error) {
	if latest, err = app.LatestMigration(); err != nil {
		return 0, 0, err
	}
	err = v.conn.QueryRow(ctx, "select coalesce(max(version_id) filter (where is_applied), 0) from public.goose_db_version").Scan(&applied)
	return applied, latest, err
}

// newer is what a check says that knows the schema of this build alone, on a database that is migrated further; else empty.
func newer(ctx context.Context, v *visit) (string, error) {
	applied, latest, err := migrated(ctx, v)
	if err != nil || applied <= latest {
		return "", err
	}
	return "not compared: the database is newer than this build; ask the newer build's doctor", nil
}

// maxListed is how many of many alike are named.
const maxListed = 20

// schema compares what there is with what this build's migrations make.
func schema(ctx context.Context, v *visit) (string, []Finding, error) {
	if seen, err := newer(ctx, v); seen != "" || err != nil {
		return seen, nil, err
	}
	d, err := app.CompareSchema(ctx, v.conn)
	if err != nil {
		return "", nil, err
	}
	var findings []Finding
	for how, subjects := range map[string][]string{"missing": d.Missing, "altered": d.Altered} {
		for _, subject := range subjects {
			findings = append(findings, damage(subject, how))
		}
	}
	slices.SortFunc(findings, func(a, b Finding) int {
		if a.State != b.State {
			return rank(b.State) - rank(a.State)
		}
		return strings.Compare(a.Seen, b.Seen)
	})
	if more := len(findings) - maxListed; more > 0 {
		findings = append(findings[:maxListed], Finding{Critical, fmt.Sprintf("and %d more", more), "compare with db/migrations, or restore into a new database"})
	}
	for _, subject := range d.Unexpected[:min(len(d.Unexpected), maxListed)] {
		findings = append(findings, Finding{Warning, subject + " is not of our migrations", "keep what is yours in a schema of your own, and drop it here: it may slow down or refuse what events need"})
	}
	return "as this build's migrations make it", findings, nil
}

const trigger = "trigger outbox_notify of core.outbox"

// damage says what an object that is missing or altered means.
func damage(subject, how string) Finding {
	f := Finding{Critical, subject + " is " + how, "run its statement again: " + definedIn(subject)}
	switch {
	case subject == trigger && how == "missing":
		f.Seen += ": nobody is woken by an insert, and every event waits for the poll"
		f.Cure = "create constraint trigger outbox_notify after insert on core.outbox deferrable initially deferred for each row when (new.status = 'pending') execute function core.outbox_notify();"
	case subject == trigger:
		f.Seen += " or disabled: inserts may wake nobody, and events wait for the poll"
		f.Cure = "alter table core.outbox enable trigger outbox_notify; if that changes nothing, drop it and create it as in " + definedIn(subject)
	case strings.HasPrefix(subject, "index "):
		name := strings.TrimPrefix(subject, "index ")
		f.Seen += ": claims and looks may read the whole table"
		f.Cure = "create it again, concurrently: " + definedIn(subject)
		if how == "altered" {
			f.Cure = "reindex index concurrently " + name + "; if it is not invalid but another one, drop it and create it as in " + definedIn(subject)
		}
	case strings.HasPrefix(subject, "table ") && how == "altered":
		f.State = Warning
		f.Seen += " in its options, row security or comment"
	}
	return f
}

var subjectForm = regexp.MustCompile(`^(constraint|trigger|policy|index|function|table|column) ([a-z0-9_.]+?)(\(.*\))?( of ([a-z0-9_.]+))?$`)

// definedIn names the last migration that defines an object.
func definedIn(subject string) string {
	const somewhere = "db/migrations"
	words := subjectForm.FindStringSubmatch(subject)
	if words == nil {
		return somewhere
	}
	kind, name, table := words[1], words[2], words[5]
	var form string
	switch kind {
	case "function":
		form = `create (or replace )?function ` + regexp.QuoteMeta(name) + `\(`
	case "table":
		form = `(create|alter) table ` + regexp.QuoteMeta(name) + `\b`
	case "index":
		form = `create (unique )?index (concurrently )?` + regexp.QuoteMeta(name[strings.LastIndex(name, ".")+1:]) + `\b`
	case "column":
		dot := strings.LastIndex(name, ".")
		form = `(create table ` + regexp.QuoteMeta(name[:dot]) + ` \((?s:[^;]*?)\n  |alter table ` + regexp.QuoteMeta(name[:dot]) + `\s(?s:[^;]*?)add column )` + regexp.QuoteMeta(name[dot+1:]) + ` `
	case "constraint":
		form = `(create|alter) table ` + regexp.QuoteMeta(table) + `\b(?s:[^;]*?)constraint ` + regexp.QuoteMeta(name) + `\b`
	default:
		form = `create (constraint )?` + kind + ` ` + regexp.QuoteMeta(name) + `\b`
	}
	defines := regexp.MustCompile(form)
	files, err := fs.Glob(db.Migrations, "migrations/*.sql")
	if err != nil {
		return somewhere
	}
	slices.Sort(files)
	for _, file := range slices.Backward(files) {
		text, err := fs.ReadFile(db.Migrations, file)
		if up, _, _ := strings.Cut(string(text), "-- +goose Down"); err == nil && defines.MatchString(up) {
			return "db/" + file
		}
	}
	return somewhere
}

// indexes finds those that Postgres does not use: a build that was cut short leaves one.
func indexes(ctx context.Context, v *visit) (string, []Finding, error) {
	found, err := all[struct {
		Name  string
		Valid bool
	}](ctx, v, `select i.indexrelid::regclass::text, i.indisvalid and i.indisready and i.indislive
		from pg_index i join pg_class c on c.oid = i.indrelid join pg_namespace n on n.oid = c.relnamespace
		where n.nspname in ('core', 'platform', 'worlds') order by 1`)
	if err != nil {
		return "", nil, err
	}
	var findings []Finding
	for _, i := range found {
		if !i.Valid {
			findings = append(findings, Finding{Critical, "index " + i.Name + " is invalid: it is written but not read", "reindex index concurrently " + i.Name + ";"})
		}
	}
	return fmt.Sprintf("%d, all valid", len(found)), findings, nil
}

// privileges compares who may do what with the data.
func privileges(ctx context.Context, v *visit) (string, []Finding, error) {
	if seen, err := newer(ctx, v); seen != "" || err != nil {
		return seen, nil, err
	}
	missing, unexpected, err := app.ComparePrivileges(ctx, v.conn)
	if err != nil {
		return "", nil, err
	}
	var findings []Finding
	for _, line := range missing[:min(len(missing), maxListed)] {
		cure := "give it back; db/privileges.txt explains the line"
		if strings.HasPrefix(line, "grant ") {
			cure = "as spectral_owner: " + statement(line) + ";"
		}
		findings = append(findings, Finding{Critical, "missing: " + line, cure})
	}
	for _, line := range unexpected[:min(len(unexpected), maxListed)] {
		cure := "nobody decided that; take it back"
		if granted, found := strings.CutPrefix(line, "grant "); found {
			cure = "nobody decided that: revoke " + strings.Replace(statement(granted), " to ", " from ", 1) + ";"
		}
		findings = append(findings, Finding{Warning, "unexpected: " + line, cure})
	}
	if more := max(len(missing)-maxListed, 0) + max(len(unexpected)-maxListed, 0); more > 0 {
		findings = append(findings, Finding{Warning, fmt.Sprintf("and %d more differences", more), "workers migrate up lists them all"})
	}
	return "as db/privileges.txt says", findings, nil
}

// statement is the SQL of a line of db/privileges.txt that begins with grant, or of its rest.
func statement(line string) string {
	for _, attribute := range []string{" inherit", " noinherit", " set", " noset"} {
		line = strings.Replace(line, attribute, "", 1)
	}
	return line
}
