-- core.error_group_mute(p_group, p_until, p_muted_by) mutes a group of errors until then; null ends that. A muted group
-- is left out of lists, warnings and alerts; its events fail and count as before. Refuses an unknown group (SP031), a
-- time that has passed or is more than 366 days ahead, a blank name (SP030). Writes core.error_groups,
-- core.operator_actions.
create function core.error_group_mute(p_group text, p_until timestamptz, p_muted_by text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  if p_until is not null and not (p_until > clock_timestamp() and p_until <= clock_timestamp() + interval '366 days')
  then
    raise exception 'until: % must be in the future, at most 366 days ahead', p_until
      using errcode = 'SP030', column = 'until', hint = 'pass null to end a mute';
  end if;
  update core.error_groups g set muted_until = p_until where g.group_id = p_group;
  if not found then
    raise exception 'group: % is not in core.error_groups', coalesce(quote_literal(left(p_group, 200)), 'null')
      using errcode = 'SP031', column = 'group', hint = '`workers events groups` lists them';
  end if;
  if p_until is null then
    perform core.operator_action('group_unmute', p_muted_by, '{}', null, jsonb_build_object('group', p_group));
  else
    perform core.operator_action('group_mute', p_muted_by, '{}', null,
      jsonb_build_object('group', p_group, 'until', p_until));
  end if;
end
$$;
