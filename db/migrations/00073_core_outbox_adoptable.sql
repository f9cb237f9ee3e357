-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.outbox_adoptable(p_from, p_to, p_event_types) is the dry run of core.outbox_adopt: for each of the given types, or all, that p_from has
-- anything of, how many events would be moved (due and scheduled), how many would not (in flight), and how many live workers of p_to
-- handle the type: 0, nobody would take them up; nor where it is paused in p_to. Refuses what core.outbox_adopt refuses. Writes nothing.
-- Reads core.outbox, core.workers, core.paused_types.
create function core.outbox_adoptable(p_from bigint, p_to bigint, p_event_types text[] default null)
returns table (event_type text, due bigint, scheduled bigint, in_flight bigint, workers bigint, paused boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
begin
  perform core.adoption_check(p_from, p_to, false);
  return query
    select b.event_type, b.due, b.scheduled, b.in_flight, b.workers, b.paused from core.generation_backlog(p_from, p_to) as b
    where p_event_types is null or b.event_type = any (p_event_types);
end
$$;
-- +goose StatementEnd
grant execute on function core.outbox_adoptable(bigint, bigint, text[]) to spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.outbox_adoptable(bigint, bigint, text[]);
