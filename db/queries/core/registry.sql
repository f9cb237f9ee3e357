-- name: RegisterGeneration :one
select core.generation_announce(@generation::bigint)::text as status;

-- name: RegisterEventTypes :one
select core.event_types_register(@generation::bigint, @types::jsonb)::integer as changed;
