-- The worlds context. Its primary keys are as in 00012_platform_tables.sql.
-- +goose Up
set local lock_timeout = '500ms';
create schema worlds authorization spectral_owner;
set local role spectral_owner;
comment on schema worlds is 'The worlds context.';
grant usage on schema worlds to spectral_worlds;

create table worlds.world_model_cards (
  id bigint generated always as identity,
  workspace_id uuid null,
  card_id text not null,
  version bigint not null,
  card jsonb not null,
  published_at timestamptz not null,
  constraint world_model_cards_pk primary key (id),
  constraint world_model_cards_key unique nulls not distinct (workspace_id, card_id),
  constraint world_model_cards_card_id_size check (octet_length(card_id) between 1 and 200),
  constraint world_model_cards_version_positive check (version >= 1),
  constraint world_model_cards_card_object check (jsonb_typeof(card) = 'object')
);
comment on table worlds.world_model_cards is 'The current version of each world model card, as published.';
grant select, insert, update on worlds.world_model_cards to spectral_worlds;

-- The key begins with the workspace, and "is not distinct from", by which a row is found, serves no index: a card is
-- found by its id.
create index world_model_cards_lookup on worlds.world_model_cards (card_id, workspace_id);

create table worlds.rule_health_decisions (
  id bigint generated always as identity,
  workspace_id uuid null,
  decision_id uuid not null,
  counted_at timestamptz not null default clock_timestamp(),
  constraint rule_health_decisions_pk primary key (id),
  constraint rule_health_decisions_key unique nulls not distinct (decision_id, workspace_id)
);
comment on table worlds.rule_health_decisions is 'The decisions that rule_health has counted: each counts once';
comment on column worlds.rule_health_decisions.counted_at is 'swept once no event can bring the decision again';
grant select, insert on worlds.rule_health_decisions to spectral_worlds;

create table worlds.rule_health (
  id bigint generated always as identity,
  workspace_id uuid null,
  rule_id text not null,
  followed bigint not null,
  overridden bigint not null,
  constraint rule_health_pk primary key (id),
  constraint rule_health_key unique nulls not distinct (rule_id, workspace_id),
  constraint rule_health_rule_id_size check (octet_length(rule_id) between 1 and 200),
  constraint rule_health_counts_possible check (followed >= 0 and overridden >= 0 and followed + overridden >= 1)
);
comment on table worlds.rule_health is 'Projection of decision.recorded: how the decisions speak for each rule';
grant select, insert, update on worlds.rule_health to spectral_worlds;

create table worlds.scans (
  id bigint generated always as identity,
  workspace_id uuid null,
  scan_id uuid not null,
  subject text not null,
  started_at timestamptz not null,
  finished_at timestamptz null,
  findings jsonb not null default '[]',
  constraint scans_pk primary key (id),
  constraint scans_key unique nulls not distinct (scan_id, workspace_id),
  constraint scans_subject_size check (octet_length(subject) between 1 and 200),
  constraint scans_times_in_order check (started_at <= finished_at),
  constraint scans_findings_array check (jsonb_typeof(findings) = 'array'),
  constraint scans_findings_of_completed check (finished_at is not null or findings = '[]')
);
comment on table worlds.scans is 'Scans of what the world models are about: running, or completed.';
comment on column worlds.scans.subject is 'what is scanned, a card or a source: card:harbour';
comment on column worlds.scans.finished_at is 'null while the scan is running';
comment on column worlds.scans.findings is 'by kind: [{"kind": ..., "occurrences": ...}]';
grant select, insert, update (finished_at, findings) on worlds.scans to spectral_worlds;

create table worlds.scan_index (
  id bigint generated always as identity,
  workspace_id uuid null,
  subject text not null,
  scan_id uuid not null,
  finished_at timestamptz not null,
  finding_kinds text[] not null,
  finding_count bigint not null,
  constraint scan_index_pk primary key (id),
  constraint scan_index_key unique nulls not distinct (subject, workspace_id),
  constraint scan_index_subject_size check (octet_length(subject) between 1 and 200),
  constraint scan_index_finding_count_possible check (finding_count >= cardinality(finding_kinds))
);
comment on table worlds.scan_index is 'Projection of worlds.scan.completed: each subject''s latest finished scan';
comment on column worlds.scan_index.finding_kinds is 'what it found, in order; how often is in scan_index_findings';
comment on column worlds.scan_index.finding_count is 'occurrences of all kinds together';
grant select, insert, update on worlds.scan_index to spectral_worlds;

create table worlds.scan_index_findings (
  id bigint generated always as identity,
  workspace_id uuid null,
  subject text not null,
  kind text not null,
  scan_id uuid not null,
  finished_at timestamptz not null,
  occurrences bigint not null,
  constraint scan_index_findings_pk primary key (id),
  constraint scan_index_findings_key unique nulls not distinct (subject, workspace_id, kind),
  constraint scan_index_findings_subject_size check (octet_length(subject) between 1 and 200),
  constraint scan_index_findings_kind_size check (octet_length(kind) between 1 and 64),
  constraint scan_index_findings_occurrences_positive check (occurrences >= 1)
);
comment on table worlds.scan_index_findings is
  'Projection of worlds.scan.completed: the last scan of each subject that found something of a kind. It stands if '
    'that is the scan of scan_index.';

-- Rows, where an array in scan_index would look simpler: under row level security an index serves only leakproof
-- operators. Equality of texts is one; @> of arrays is not, and would read the whole table.
create index scan_index_findings_kind on worlds.scan_index_findings (kind, workspace_id);
grant select, insert, update on worlds.scan_index_findings to spectral_worlds;

create table worlds.rule_candidates (
  candidate_id uuid not null,
  workspace_id uuid null,
  origin text not null,
  origin_id uuid not null,
  revision bigint not null,
  statement text not null,
  occurrences bigint not null,
  confidence double precision not null,
  state text not null default 'proposed',
  decision_id uuid null,
  decided_at timestamptz null,
  proposed_at timestamptz not null,
  updated_at timestamptz not null,
  constraint rule_candidates_pk primary key (candidate_id),
  constraint rule_candidates_origin_once unique nulls not distinct (origin, origin_id, workspace_id),
  constraint rule_candidates_origin check (origin in ('failure_cluster', 'memory')),
  constraint rule_candidates_revision_not_negative check (revision >= 0),
  constraint rule_candidates_statement_size check (octet_length(statement) between 1 and 4000),
  constraint rule_candidates_occurrences_positive check (occurrences >= 1),
  constraint rule_candidates_confidence check (confidence between 0 and 1),
  constraint rule_candidates_state check (state in ('proposed', 'approved', 'rejected')),
  constraint rule_candidates_decided check ((state = 'proposed') = (decision_id is null)
    and (state = 'proposed') = (decided_at is null))
);
comment on table worlds.rule_candidates is 'Rules suggested by failure clusters and memories, and curators'' decisions';
comment on column worlds.rule_candidates.origin_id is 'the cluster or memory, in a table of the platform context';
comment on column worlds.rule_candidates.revision is 'of the origin, whose fact is kept here; 0 if that fact has none';
comment on column worlds.rule_candidates.occurrences is 'failures of the cluster, or observations of the memory';
comment on column worlds.rule_candidates.decision_id is 'the newest decision that was applied';
grant select, insert, update (revision, statement, occurrences, confidence, state, decision_id, decided_at,
  updated_at) on worlds.rule_candidates to spectral_worlds;

create table worlds.curation_rulings (
  id bigint generated always as identity,
  workspace_id uuid null,
  decision_id uuid not null,
  candidate_id uuid not null,
  outcome text not null,
  reason text null,
  ruled_at timestamptz not null,
  constraint curation_rulings_pk primary key (id),
  constraint curation_rulings_key unique nulls not distinct (decision_id, workspace_id),
  constraint curation_rulings_outcome check (outcome in ('applied', 'refused')),
  constraint curation_rulings_reason check ((outcome = 'refused') = (reason is not null)),
  constraint curation_rulings_reason_size check (octet_length(reason) between 1 and 500)
);
comment on table worlds.curation_rulings is
  'What worlds made of each curation decision, once: the transaction that writes it publishes worlds.curation.applied.';
comment on column worlds.curation_rulings.decision_id is 'of platform.curation_decisions, another context''s table';
comment on column worlds.curation_rulings.candidate_id is 'as the decision names it: there may be no such candidate';
grant select, insert on worlds.curation_rulings to spectral_worlds;

-- Each table shows and takes the rows of the workspace that is set, none if none is.
-- +goose StatementBegin
do $$
declare
  v_table text;
begin
  foreach v_table in array array['world_model_cards', 'rule_health_decisions', 'rule_health', 'scans', 'scan_index',
    'scan_index_findings', 'rule_candidates', 'curation_rulings'] loop
    execute format('alter table worlds.%I enable row level security', v_table);
    execute format('create policy %I on worlds.%I to spectral_worlds
        using (workspace_id is not distinct from nullif(current_setting(''spectral.workspace_id'', true), '''')::uuid)
        with check (workspace_id is not distinct from nullif(current_setting(''spectral.workspace_id'', '
          'true), '''')::uuid)',
      v_table || '_workspace', v_table);
  end loop;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create function worlds.retention_delete_rule_health_decisions(p_after text[], p_limit integer)
returns table (rows bigint, next text[]) language plpgsql volatile as $$
declare
  v_gone constant timestamptz := (core.retention_window('event_handled')).gone;
  v_after constant uuid := coalesce(p_after[1], '00000000-0000-0000-0000-000000000000');
  v_ids uuid[];
begin
  select array_agg(p.decision_id) into v_ids
  from (select c.decision_id from worlds.rule_health_decisions c where c.decision_id > v_after
    order by c.decision_id limit p_limit) p;
  delete from worlds.rule_health_decisions c
  where c.ctid = any (array(select d.ctid from worlds.rule_health_decisions d
    where d.decision_id > v_after and d.decision_id <= v_ids[cardinality(v_ids)] and d.counted_at <= v_gone
    for update skip locked));
  get diagnostics rows = row_count;
  next := case when cardinality(v_ids) = p_limit then array[v_ids[p_limit]::text] end;
  return next;
end
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
set local lock_timeout = '500ms';
select core.require_empty('worlds.curation_rulings', 'worlds.rule_candidates', 'worlds.scan_index_findings',
  'worlds.scan_index', 'worlds.scans', 'worlds.rule_health', 'worlds.rule_health_decisions',
  'worlds.world_model_cards');
drop function worlds.retention_delete_rule_health_decisions;
drop table worlds.curation_rulings, worlds.rule_candidates, worlds.scan_index_findings, worlds.scan_index,
  worlds.scans, worlds.rule_health, worlds.rule_health_decisions, worlds.world_model_cards;
drop schema worlds;
