-- The event types that may be published, as the contracts in the code declare them. Written by
-- `workers migrate up` and at every worker start, read by the publishing functions, so that SQL
-- refuses what Go refuses.

-- +goose Up
set local lock_timeout = '5s';
set local role spectral_owner;

create table core.event_types (
  event_type text not null,
  event_version integer not null,
  source text not null,
  class text null,
  content_class text not null,
  consumed boolean not null,
  registered_by bigint not null,
  registered_at timestamptz not null default clock_timestamp(),
  constraint event_types_pk primary key (event_type, event_version),
  constraint event_types_version_positive check (event_version between 1 and 1000000),
  constraint event_types_source_known check (source in ('platform', 'worlds', 'core')),
  constraint event_types_class_form check (class ~ '^[a-z][a-z0-9_]{0,29}$'),
  constraint event_types_content_class_known check (content_class in ('operational', 'workspace'))
);
comment on table core.event_types is 'Registered event types; the contracts in the code are their source.';
comment on column core.event_types.class is 'processing class: the suffix of the channel outbox_gen_<N>_<class>, or null';
comment on column core.event_types.consumed is 'false: nobody handles it, it is settled as it is published';
comment on column core.event_types.registered_by is 'generation of the code that wrote this row; an older one never overwrites it';
grant select on core.event_types to spectral_publisher, spectral_worker, spectral_operator;

-- +goose StatementBegin
-- core.event_types_register(p_generation, p_types) upserts the contracts of one build. p_types is
-- an array of {event_type, event_version, source, class, content_class, consumed}. A row written
-- by a higher generation stays. Types are never removed: an older build may still publish them.
-- Returns how many rows changed. Writes core.event_types.
create function core.event_types_register(p_generation bigint, p_types jsonb) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, core, pg_temp
as $$
declare
  v_changed integer;
begin
  if p_generation is null or p_generation not between 0 and 999999999999 then
    raise exception 'generation: % must be from 0 to 999999999999', coalesce(p_generation::text, 'null')
      using errcode = 'SP019', column = 'generation';
  end if;
  insert into core.event_types as t
    (event_type, event_version, source, class, content_class, consumed, registered_by)
  select r.event_type, r.event_version, r.source, r.class, r.content_class, r.consumed, p_generation
  from jsonb_to_recordset(p_types) as r
    (event_type text, event_version integer, source text, class text, content_class text, consumed boolean)
  order by r.event_type, r.event_version -- one order for all, so that two registrations never deadlock
  on conflict (event_type, event_version) do update
    set source = excluded.source, class = excluded.class, content_class = excluded.content_class,
        consumed = excluded.consumed, registered_by = excluded.registered_by,
        registered_at = clock_timestamp()
    where t.registered_by <= excluded.registered_by
      and (t.source, t.class, t.content_class, t.consumed, t.registered_by)
        is distinct from
          (excluded.source, excluded.class, excluded.content_class, excluded.consumed, excluded.registered_by);
  get diagnostics v_changed = row_count;
  return v_changed;
end
$$;
-- +goose StatementEnd
grant execute on function core.event_types_register(bigint, jsonb) to spectral_worker, spectral_operator;
reset role;

-- +goose Down
set local lock_timeout = '5s';
drop function core.event_types_register(bigint, jsonb);
drop table core.event_types; -- rewritten by the next start
