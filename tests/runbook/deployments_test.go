package runbook_test

import (
	"net/url"
	"strings"

	"spectral/tests/pgtest"
)

// loginOf returns the login of a URL.
func loginOf(at string) string {
	u, err := url.Parse(at)
	if err != nil {
		return ""
	}
	return u.User.Username()
}

// generations returns the generations and their status, as text.
const generations = "select string_agg(generation || ' ' || status, ', ' order by generation) from core.deployments " +
	"where generation > 1"

// deployments are the situations of docs/deployment.md.
var deployments = map[string]trouble{
	"Allocating a generation": {one: true, prepare: func(s *scene) func() {
		s.exec("select core.generation_announce(41)")
		return func() { s.shown("42") }
	}},
	"Cutover, from 7 to 8": {prepare: func(s *scene) func() {
		s.exec("select core.generation_announce(7)")
		s.registered(8)
		return func() {
			if strings.Contains(s.output, "applied") || strings.Contains(s.output, "up to date") {
				s.want(generations, "7 retired, 8 live")
				s.acts("generation_drain", "1")
				return
			}
			s.want(generations, "7 draining, 8 live")
		}
	}},
	"Rollback, from 8 to 7": {prepare: func(s *scene) func() {
		s.exec("select core.generation_announce(7)")
		s.exec("select core.generation_announce(8)")
		s.exec("select core.generation_drain(7, 'ben')")
		return func() { s.want(generations, "7 live, 8 draining") }
	}},
	"Legacy drain": {one: true, prepare: func(s *scene) func() {
		s.pending(4, 8)
		s.exec("select core.generation_drain(8, 'ben')")
		return func() { s.want("select count(*) from core.outbox where status = 'delivered'", "4") }
	}},
	"Adoption": {prepare: func(s *scene) func() {
		s.pending(4, 8)
		s.exec("select core.generation_drain(8, 'ben')")
		s.registered(7)
		return func() {
			s.shown(card)
			s.want("select count(*) from core.outbox where generation = 7 and channel = 'outbox_gen_7'", "4")
		}
	}},
	"If a generation is not retired": {one: true, prepare: func(s *scene) func() {
		s.exec("select core.generation_announce(7)")
		s.exec("select core.generation_drain(7, 'ben')")
		// beside other tests' transactions it takes more calls
		return func() { s.await("select core.generation_retire(7, 'ana')", "retired") }
	}},
	"Secrets": {one: true, prepare: func(s *scene) func() {
		s.exec("drop role if exists worker_b; drop role if exists worker_a; create role worker_a login in role " +
			"spectral_worker")
		return func() {
			s.want("select string_agg(rolname, ',') from pg_roles where rolname in ('worker_a', 'worker_b') and "+
				"pg_has_role(oid, 'spectral_worker', 'member')", "worker_b")
			s.exec("drop role worker_b")
		}
	}},
	// both clusters are the test's: what is tried is the order, and that what is restored is whole
	"Moving to another cluster": {one: true, prepare: func(s *scene) func() {
		s.pending(3, 1)
		u, err := url.Parse(s.at)
		if err != nil {
			s.Fatal(err)
		}
		at := func(database string) string {
			v := *u
			v.Path = "/" + database
			return v.String()
		}
		s.instead = map[string]string{
			"postgres://owner@old/app": s.at, "postgres://owner@new/postgres": at("postgres"),
			"postgres://owner@new/for_roles": at("moved_for_roles"), "postgres://owner@new/app": at("moved_app"),
			" for_roles\n": " moved_for_roles\n", " app\n": " moved_app\n",
		}
		return func() {
			from, to := s.value("select count(*) from core.outbox where status = 'pending'"), *s
			to.admin = pgtest.Conn(s.T, at("moved_app"))
			if have := to.value("select count(*) from core.outbox where status = 'pending'"); have != from ||
				have != "3" {
				s.Errorf("%s events were restored, of %s", have, from)
			}
			if err := to.admin.Close(s.ctx); err != nil {
				s.Fatal(err)
			}
			s.exec("drop database moved_app")
		}
	}},
}
