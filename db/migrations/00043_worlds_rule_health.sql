-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table worlds.rule_health (
  workspace_id uuid null,
  rule_id text not null,
  followed bigint not null,
  overridden bigint not null,
  state text not null,
  last_decided_at timestamptz not null,
  constraint rule_health_key unique nulls not distinct (rule_id, workspace_id),
  constraint rule_health_rule_id_size check (octet_length(rule_id) between 1 and 200),
  constraint rule_health_counts_possible check (followed >= 0 and overridden >= 0 and followed + overridden >= 1),
  constraint rule_health_state_known check (state in ('unrated', 'healthy', 'contested', 'failing'))
);
comment on table worlds.rule_health is 'Projection of decision.recorded: how the decisions on each rule''s proposals speak for it.';
comment on column worlds.rule_health.state is 'by the share of overrides; unrated while there are too few decisions to tell';
alter table worlds.rule_health enable row level security;
create policy rule_health_workspace on worlds.rule_health to spectral_worlds
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert, update on worlds.rule_health to spectral_worlds;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from worlds.rule_health) then
    raise exception 'worlds.rule_health is not empty: going down would lose counts';
  end if;
end
$$;
-- +goose StatementEnd
drop table worlds.rule_health;
