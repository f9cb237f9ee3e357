-- What operators did, when and to which events, whether by SQL, command or console: the functions that act write it
-- themselves, in the same transaction.

-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;

create table core.operator_actions (
  id uuid not null default core.uuid_v7(),
  acted_at timestamptz not null default clock_timestamp(),
  action text not null,
  acted_by text not null,
  login text not null default session_user,
  event_ids uuid[] not null default '{}',
  generation bigint null,
  details jsonb not null default '{}',
  deleted_at timestamptz null,
  constraint operator_actions_pk primary key (id),
  constraint operator_actions_action_form check (action ~ '^[a-z][a-z_]{0,39}$'),
  constraint operator_actions_acted_by_size check (octet_length(acted_by) between 1 and 256),
  constraint operator_actions_details_object check (jsonb_typeof(details) = 'object' and pg_column_size(details) <= 65536)
);
comment on table core.operator_actions is 'What operators did: one row for each call of a function that acts.';
comment on column core.operator_actions.acted_by is 'who, as the caller said; the login where nothing was said';
comment on column core.operator_actions.login is 'the login that called, which cannot be said otherwise';
comment on column core.operator_actions.event_ids is 'the events of core.outbox that were acted on';
comment on column core.operator_actions.generation is 'the generation that was acted on, or that events were moved to';
create index operator_actions_events on core.operator_actions using gin (event_ids);
grant select on core.operator_actions to spectral_operator;

-- +goose StatementBegin
-- core.operator_action(p_action, p_acted_by, p_event_ids, p_generation, p_details) notes what an operator does, in
-- the transaction that does it; the functions that act are its only callers. p_acted_by may be null: then it is the login.
-- Refuses a name that is blank or longer than 256 bytes (SP030). Writes core.operator_actions.
create function core.operator_action(
  p_action text, p_acted_by text, p_event_ids uuid[] default '{}', p_generation bigint default null, p_details jsonb default '{}'
) returns void
language plpgsql volatile
as $$
begin
  if p_acted_by is not null and (btrim(p_acted_by) = '' or octet_length(p_acted_by) > 256) then
    raise exception 'acted_by: must be 1 to 256 bytes, not blank; it has % bytes', octet_length(p_acted_by)
      using errcode = 'SP030', column = 'acted_by', hint = 'name yourself, or pass null to be noted as your login';
  end if;
  insert into core.operator_actions (action, acted_by, event_ids, generation, details)
  values (p_action, coalesce(btrim(p_acted_by), session_user), coalesce(p_event_ids, '{}'), p_generation, coalesce(jsonb_strip_nulls(p_details), '{}'));
end
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from core.operator_actions) then
    raise exception 'core.operator_actions has rows: going down would lose what operators did';
  end if;
end
$$;
-- +goose StatementEnd
drop function core.operator_action(text, text, uuid[], bigint, jsonb);
drop table core.operator_actions;
