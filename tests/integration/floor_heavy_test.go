//go:build heavy

package integration_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/tests/pgtest"
)

// Whoever inserts and commits half a minute later is picked up at once, though the floor has risen
// as far as it may with every event of the others.
func TestCommitsThatComeLateArePickedUp(t *testing.T) {
	b := setupAlone(t, 4*patience)
	p := newPickups()
	b.listen(never, p.subscription())
	const late, apart, lateBy = 3, 5 * time.Second, 30 * time.Second
	var open []*pgx.Conn
	var ids []string
	started := time.Now()
	for n := 0; ids == nil || len(open) > 0; n++ {
		sofar := time.Since(started)
		if len(ids) < late && sofar >= time.Duration(len(ids))*apart {
			conn := pgtest.Conn(t, b.url)
			_, err := conn.Exec(b.ctx, "begin")
			must(t, err)
			e := event(n)
			_, err = conn.Exec(b.ctx, fmt.Sprintf(publishSQL, e.EventID))
			must(t, err)
			open, ids = append(open, conn), append(ids, e.EventID.String())
		}
		if done := len(ids) - len(open); len(open) > 0 && sofar >= time.Duration(done)*apart+lateBy {
			b.commit(open[0])
			p.within(t, time.Second, time.Now(), ids[done])
			open = open[1:]
		}
		e := event(n)
		b.publish(e)
		p.within(t, time.Second, time.Now(), e.EventID.String())
	}
	if len(ids) != late {
		t.Fatalf("%d late ones", len(ids))
	}
	t.Logf("the longest pickup took %s", p.longest)
}
