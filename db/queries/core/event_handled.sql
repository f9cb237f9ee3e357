-- name: ClaimKey :one
-- Decides who handles a key: without a row, another transaction has it. A concurrent duplicate waits here until the
-- transaction or savepoint of the first one ends.
insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, workspace_id, content_class)
values (@handler_name, @idempotency_key, @event_id, @event_type, @workspace_id, @content_class)
on conflict (handler_name, idempotency_key) do nothing
returning handler_name::text as handler_name;

-- name: ClaimKeys :many
-- The same for a batch of one type. It returns the keys that were free, or one empty row if all were. Every worker
-- takes the keys in one order, so that two batches never deadlock on them. A key may stand in it once only. The nil
-- UUID stands for no workspace.
with claimed as (
  insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, workspace_id, content_class)
  select k.handler_name, k.idempotency_key, k.event_id, @event_type::text,
    nullif(k.workspace_id, '00000000-0000-0000-0000-000000000000'), k.content_class
  from (select unnest(@handler_names::text[]) as handler_name, unnest(@idempotency_keys::text[]) as idempotency_key,
               unnest(@event_ids::uuid[]) as event_id, unnest(@workspace_ids::uuid[]) as workspace_id,
               unnest(@content_classes::text[]) as content_class) as k
  order by k.handler_name, k.idempotency_key
  on conflict (handler_name, idempotency_key) do nothing
  returning handler_name, idempotency_key)
select c.handler_name::text as handler_name, c.idempotency_key::text as idempotency_key from claimed c
where (select count(*) from claimed) < cardinality(@handler_names)
union all select '', '' where (select count(*) from claimed) = cardinality(@handler_names);
