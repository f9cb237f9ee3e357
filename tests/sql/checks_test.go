package sql_test

import (
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
	looks := map[string]chan error{"worker's": make(chan error, 1), "operator's": make(chan error, 1)}
	go func() {
		looks["worker's"] <- app.CheckDatabase(ctx, &app.Settings{DatabaseURL: worker, PoolURL: worker})
	}()
	go func() { looks["operator's"] <- app.CheckOperator(ctx, worker) }()
	for waiting := 0; waiting < len(looks); {
		for whose, look := range looks {
			select {
			case err := <-look:
				t.Fatalf("a %s look ends beside a lock: %v", whose, err)
			default:
			}
		}
		waiting = value[int](t, admin,
			`select count(*) from pg_locks l where l.relation = 'spectral_goose.goose_db_version'::regclass
				and l.database = (select oid from pg_database where datname = current_database())
			and not l.granted and l.waitstart < clock_timestamp() - interval '150 ms'`)
	}
	exec(t, holder, "commit")
	for whose, look := range looks {
		if err := <-look; err != nil {
			t.Errorf("a %s look: %v", whose, err)
		}
	}
}
