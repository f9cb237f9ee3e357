-- +goose Up
set local lock_timeout = '5s';
set local role spectral_owner;
-- +goose StatementBegin
-- core.outbox_deliver(p_ids, p_occurred_ats) settles claimed rows as delivered, counting the
-- dispatch. Row i is named by the i-th id and occurred_at. Only pending rows are settled; returns
-- how many were, for the caller to compare. Writes core.outbox.
create function core.outbox_deliver(p_ids uuid[], p_occurred_ats timestamptz[]) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
declare
  v_settled integer;
begin
  update core.outbox o
  set status = 'delivered', delivered_at = clock_timestamp(), attempts = o.attempts + 1
  from unnest(p_ids, p_occurred_ats) as k(id, occurred_at)
  where o.id = k.id and o.occurred_at = k.occurred_at and o.status = 'pending' and o.deleted_at is null;
  get diagnostics v_settled = row_count;
  return v_settled;
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_deliver(uuid[], timestamptz[]) to spectral_worker;
reset role;

-- +goose Down
set local lock_timeout = '5s';
drop function core.outbox_deliver(uuid[], timestamptz[]);
