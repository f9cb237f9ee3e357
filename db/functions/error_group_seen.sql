-- core.error_group_seen(p_group, p_handler, p_class, p_message, p_generation) makes sure that a group of errors is
-- known, and was seen in the last minute. It writes nothing more often: failures of one group would wait for each
-- other. Writes core.error_groups.
create function core.error_group_seen(p_group text, p_handler text, p_class text, p_message text,
  p_generation bigint) returns void language plpgsql volatile as $$
begin
  insert into core.error_groups as g (group_id, handler_name, error_class, message, first_generation)
  select left(p_group, 64), case when p_group = p_class then 'outbox' else left(p_handler, 256) end,
    left(p_class, 256), left(p_message, 1000), p_generation
  where not exists (select from core.error_groups k
    where k.group_id = left(p_group, 64) and k.last_seen > clock_timestamp() - interval '1 minute')
  on conflict (group_id) do update set last_seen = clock_timestamp();
end
$$;
