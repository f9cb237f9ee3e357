package pgtest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// pool holds the databases that no test uses. They have what the template has.
var pool struct {
	sync.Mutex
	idle []database
}

type database struct {
	name    string
	emptied string // when the counters of what is written began; "" for a new database
}

// template is the content of a new database.
var template struct {
	relations string   // a hash
	filled    []string // the tables that migrating fills
	fill      []string // the statements that fill them
}

const (
	// relations omits what TRUNCATE, VACUUM and ANALYZE change in pg_class.
	relations = `select md5(string_agg(concat_ws(' ', oid, relname, relnamespace, relowner, relacl, reloptions, relkind,
		relpersistence, reltablespace, relam, relrowsecurity, relforcerowsecurity, relreplident, relispartition, relnatts,
			relchecks), ';'
		order by oid)) from pg_catalog.pg_class where relpersistence <> 't'`

	// catalogWrites counts writes since the database was last emptied. Sessions add theirs when they end.
	catalogWrites = `select sum(pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid) +
		pg_stat_get_tuples_deleted(oid))
		from pg_catalog.pg_class where relnamespace = 'pg_catalog'::regnamespace and relkind = 'r' and not relisshared
		and relname not in ('pg_class', 'pg_statistic', 'pg_statistic_ext_data', 'pg_largeobject')`

	// unusual tells whether settings or privileges of the database were changed, or its statistics reset.
	unusual = `select coalesce(pg_stat_get_db_stat_reset_time(d.oid)::text, ''),
		exists (select from pg_catalog.pg_db_role_setting where setdatabase = d.oid)
		or datacl is not null or datconnlimit <> -1 or datdba <> 10 or not datallowconn
		from pg_catalog.pg_database d where datname = current_database()`

	// written lists the tables that have pages, or that VACUUM or ANALYZE has processed.
	written = `select format('%I.%I', relnamespace::regnamespace, relname),
		reltuples >= 0 or pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid) +
			pg_stat_get_tuples_deleted(oid) > 0
		from pg_catalog.pg_class
		where relkind = 'r' and oid >= 16384 and (reltuples >= 0 or pg_relation_size(oid) > 0)`
)

// readTemplate stores in template what a new database has.
func readTemplate(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	// Without the reset autovacuum would analyze the tables that migrating filled.
	if _, err := conn.Exec(ctx, "select pg_stat_reset()"); err != nil {
		return err
	}
	if err := conn.QueryRow(ctx, relations).Scan(&template.relations); err != nil {
		return err
	}
	rows, err := conn.Query(ctx, written)
	if err != nil {
		return err
	}
	template.filled, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (table string, err error) {
		return table, row.Scan(&table, nil)
	})
	if err != nil {
		return err
	}
	for _, table := range template.filled {
		var fill string
		err := conn.QueryRow(ctx, `select format('insert into %s overriding system value
			select * from unnest(%L::%1$s[])', $1::text, array_agg(t)) from `+table+" as t", table).Scan(&fill)
		if err != nil {
			return err
		}
		template.fill = append(template.fill, fill)
	}
	rows, err = conn.Query(ctx, `select format('select pg_catalog.setval(%L, %s)',
		format('%I.%I', schemaname, sequencename), last_value) from pg_sequences where last_value > 0`)
	if err != nil {
		return err
	}
	sequences, err := pgx.CollectRows(rows, pgx.RowTo[string])
	template.fill = append(template.fill, sequences...)
	return err
}

// errChanged is returned for a database in which a test changed more than rows.
var errChanged = errors.New("the schema, privileges or settings were changed")

// recycle empties a database and puts it into the pool. It gets a new name, so that no client of the earlier test can
// reconnect to it.
func recycle(ctx context.Context, d database) error {
	if err := endSessions(ctx, d.name); err != nil {
		return err
	}
	emptied, err := empty(ctx, d)
	if err != nil {
		return err
	}
	next := newName()
	if err := endSessions(ctx, d.name); err != nil { // with a session in it the rename would wait
		return err
	}
	if err := administer(ctx, "alter database "+d.name+" rename to "+next); err != nil {
		return err
	}
	pool.Lock()
	defer pool.Unlock()
	pool.idle = append(pool.idle, database{next, emptied})
	return nil
}

// endSessions terminates the sessions in a database and waits until there is none.
func endSessions(ctx context.Context, name string) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		var left int
		err := asAdministrator(ctx, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `select count(pg_terminate_backend(pid)) from pg_stat_activity
				where datname = $1`, name).Scan(&left)
		})
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// empty removes the rows that a test wrote, and returns the new start of the statistics.
func empty(ctx context.Context, d database) (emptied string, err error) {
	config, err := pgx.ParseConfig(server.URL(d.name))
	if err != nil {
		return "", err
	}
	config.RuntimeParams["search_path"] = "pg_catalog"
	config.RuntimeParams["session_replication_role"] = "replica" // no triggers
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	results, err := conn.PgConn().Exec(ctx,
		strings.Join([]string{unusual, catalogWrites, relations, written}, ";")).ReadAll()
	if err != nil {
		return "", err
	}
	first := func(of int) string { return string(results[of].Rows[0][0]) }
	if first(0) != d.emptied || string(results[0].Rows[0][1]) != "f" || first(1) != "0" || first(2) != template.relations {
		return "", errChanged
	}
	touched, seedTouched := map[string]bool{}, false
	for _, row := range results[3].Rows {
		touched[string(row[0])] = string(row[1]) == "t"
	}
	for _, table := range template.filled {
		as, there := touched[table] // it is not there if it was truncated
		seedTouched = seedTouched || as || !there
		delete(touched, table)
	}
	tables, fill := slices.Collect(maps.Keys(touched)), []string{"select pg_stat_force_next_flush()"}
	if seedTouched {
		tables, fill = append(tables, template.filled...), append(fill, template.fill...)
	}
	if len(tables) > 0 {
		fill = append([]string{"truncate " + strings.Join(tables, ", ") + " restart identity cascade",
			"delete from pg_statistic where starelid >= 16384"}, fill...)
	}
	if _, err := conn.Exec(ctx, strings.Join(fill, ";")); err != nil {
		return "", err
	}
	results, err = conn.PgConn().Exec(ctx, `select pg_stat_reset();
		select pg_stat_get_db_stat_reset_time(oid)::text from pg_database where datname = current_database()`).ReadAll()
	if err != nil {
		return "", err
	}
	return first(1), nil
}
