-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
create table worlds.curation_rulings (
  workspace_id uuid null,
  decision_id uuid not null,
  candidate_id uuid not null,
  outcome text not null,
  reason text null,
  ruled_at timestamptz not null,
  constraint curation_rulings_key unique nulls not distinct (decision_id, workspace_id),
  constraint curation_rulings_outcome check (outcome in ('applied', 'refused')),
  constraint curation_rulings_reason check ((outcome = 'refused') = (reason is not null)),
  constraint curation_rulings_reason_size check (octet_length(reason) between 1 and 500)
);
comment on table worlds.curation_rulings is 'What worlds made of each curation decision, once: whoever writes the row publishes worlds.curation.applied.';
comment on column worlds.curation_rulings.decision_id is 'of platform.curation_decisions, which is another context''s: no foreign key';
comment on column worlds.curation_rulings.candidate_id is 'as the decision names it: there may be no such candidate';
alter table worlds.curation_rulings enable row level security;
create policy curation_rulings_workspace on worlds.curation_rulings to spectral_worlds
  using (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid)
  with check (workspace_id is not distinct from nullif(current_setting('spectral.workspace_id', true), '')::uuid);
grant select, insert on worlds.curation_rulings to spectral_worlds;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '500ms';
  if exists (select from worlds.curation_rulings) then
    raise exception 'worlds.curation_rulings is not empty: going down would lose rulings';
  end if;
end
$$;
-- +goose StatementEnd
drop table worlds.curation_rulings;
