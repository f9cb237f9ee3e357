-- name: Breakers :many
-- The open breakers of a generation; -1: no probe is to come.
select b.handler_name::text as handler_name, b.event_type::text as event_type, b.closing::boolean as closing,
  case when b.forced or b.closing then -1 else greatest(extract(epoch from
    greatest(b.next_probe_at, coalesce(b.probing_until, b.next_probe_at)) - clock_timestamp()), 0)
    end::double precision as next_in
from core.breakers b where b.generation = @generation::bigint
order by b.handler_name;

-- name: OpenBreaker :one
select core.breaker_open(@generation::bigint, @handler::text, @event_type::text, @cause::text,
  @opened_by::text)::boolean as opened;

-- name: ProbeBreaker :one
-- 0: it is not time, or another worker probes it.
select coalesce(core.breaker_probe(@generation::bigint, @handler::text, @seconds::double precision), 0)::integer
  as width;

-- name: BreakerProbed :one
select core.breaker_probed(@generation::bigint, @handler::text, @calls::integer, @failed::boolean)::boolean as closing;

-- name: ReleaseBreaker :one
select core.breaker_release(@generation::bigint, @handler::text, @row_limit::integer)::integer as released;
