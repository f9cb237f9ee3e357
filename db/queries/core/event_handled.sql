-- name: ClaimKey :one
-- Decides who handles a key: without a row, another transaction has it. A concurrent duplicate waits here until the
-- transaction or savepoint of the first one ends.
insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, workspace_id, content_class)
values (@handler_name, @idempotency_key, @event_id, @event_type, @workspace_id, @content_class)
on conflict (handler_name, idempotency_key) do nothing
returning handler_name;

-- name: ClaimKeys :many
-- The same for a batch. Every worker takes the keys in one order, so that two batches never
-- deadlock on them. A key may stand in it once only. The nil UUID stands for no workspace.
insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, workspace_id, content_class)
select k.handler_name, k.idempotency_key, k.event_id, k.event_type,
  nullif(k.workspace_id, '00000000-0000-0000-0000-000000000000'), k.content_class
from (select unnest(@handler_names::text[]) as handler_name, unnest(@idempotency_keys::text[]) as idempotency_key,
             unnest(@event_ids::uuid[]) as event_id, unnest(@event_types::text[]) as event_type,
             unnest(@workspace_ids::uuid[]) as workspace_id, unnest(@content_classes::text[]) as content_class) as k
order by k.handler_name, k.idempotency_key
on conflict (handler_name, idempotency_key) do nothing
returning handler_name, idempotency_key;
