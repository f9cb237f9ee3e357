package sql_test

import (
	"errors"
	"testing"

	"spectral/internal/app"
	"spectral/tests/pgtest"
)

// How long a login's statements may take by default is not how long a worker's first look at the database may.
func TestTheFirstLookTakesItsTime(t *testing.T) {
	t.Parallel()
	ctx, at := deadline(t), pgtest.New(t)
	admin, holder := pgtest.Conn(t, at), pgtest.Conn(t, at)
	worker := pgtest.Login(t, at, "spectral_worker", "spectral_operator")
	login := pgtest.Conn(t, worker).Config().User
	exec(t, admin, "alter role "+login+" set statement_timeout = '100ms'")
	exec(t, holder, "begin; lock table spectral_goose.goose_db_version")
	looked := make(chan error, 2)
	go func() { looked <- app.CheckDatabase(ctx, &app.Settings{DatabaseURL: worker, PoolURL: worker}) }()
	go func() { looked <- app.CheckOperator(ctx, worker) }()
	waitFor(t, admin, `select count(*) = 2 from pg_locks where relation = 'spectral_goose.goose_db_version'::regclass
		and database = (select oid from pg_database where datname = current_database())
		and not granted and waitstart < clock_timestamp() - interval '150 ms'`)
	exec(t, holder, "commit")
	if err := errors.Join(<-looked, <-looked); err != nil {
		t.Error(err)
	}
}
