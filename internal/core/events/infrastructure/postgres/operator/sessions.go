package operator

import (
	"context"
	"time"
)

// Session is a session of the database that has a transaction open. What the login may not see of it is empty.
type Session struct {
	PID         int       `json:"pid"`
	Login       string    `json:"login"`
	Application string    `json:"application"`
	State       string    `json:"state"`
	Wait        string    `json:"wait"` // what it waits for
	StartedAt   time.Time `json:"started_at"`
	HasSnapshot bool      `json:"has_snapshot"` // it holds up vacuum
	BlockedBy   []int     `json:"blocked_by"`   // sessions whose locks it waits for
	Query       string    `json:"query"`        // its latest statement, at most 200 characters
}

// Sessions returns the sessions of the database with an open transaction, the oldest transaction first. Those of other
// logins show only to a member of pg_read_all_stats.
func (c *Client) Sessions(ctx context.Context, limit int) ([]Session, error) {
	return list[Session](ctx, c, "list sessions", `
select a.pid, coalesce(a.usename::text, '') as login, a.application_name as application, coalesce(a.state, '') as state,
  coalesce(a.wait_event_type || ': ' || a.wait_event, '') as wait, a.xact_start as started_at,
  a.backend_xmin is not null as has_snapshot,
  case when a.wait_event_type = 'Lock' then pg_blocking_pids(a.pid) else '{}' end as blocked_by,
  left(a.query, 200) as query
from pg_stat_activity a
where a.datname = current_database() and a.xact_start is not null and a.pid <> pg_backend_pid()
order by a.xact_start, a.pid limit $1`, limit)
}
