-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table worlds.rule_health_decisions (
  workspace_id uuid null,
  decision_id uuid not null,
  constraint rule_health_decisions_key unique nulls not distinct (decision_id, workspace_id)
);
comment on table worlds.rule_health_decisions is 'The decisions that rule_health has counted: each counts once, however often it is told.';
alter table worlds.rule_health_decisions enable row level security;
create policy rule_health_decisions_workspace on worlds.rule_health_decisions to spectral_worlds
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert on worlds.rule_health_decisions to spectral_worlds;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from worlds.rule_health_decisions) then
    raise exception 'worlds.rule_health_decisions is not empty: going down would lose what has been counted';
  end if;
end
$$;
-- +goose StatementEnd
drop table worlds.rule_health_decisions;
