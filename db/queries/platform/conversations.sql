-- name: AddConversation :exec
insert into platform.conversations (conversation_id, workspace_id, trigger_event_id, created_at)
values (@conversation_id, @workspace_id, sqlc.narg('trigger_event_id'), @created_at);

-- name: FindConversation :one
select conversation_id from platform.conversations
where conversation_id = @conversation_id and workspace_id is not distinct from @workspace_id;
