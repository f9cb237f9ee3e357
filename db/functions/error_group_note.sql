-- core.error_group_note(p_group, p_note, p_noted_by) sets the note of a group of errors; null removes it. Refuses an
-- unknown group (SP031), a note or name that is blank or too long (SP030). Writes core.error_groups,
-- core.operator_actions.
create function core.error_group_note(p_group text, p_note text, p_noted_by text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, core, pg_temp as $$
begin
  if btrim(p_note) = '' or octet_length(p_note) > 1024 then
    raise exception 'note: must be 1 to 1024 bytes, not blank; it has % bytes', octet_length(p_note)
      using errcode = 'SP030', column = 'note', hint = 'say what is known, or pass null to remove the note';
  end if;
  update core.error_groups g set note = btrim(p_note),
    noted_by = case when p_note is not null then coalesce(btrim(p_noted_by), session_user) end
  where g.group_id = p_group;
  if not found then
    raise exception 'group: % is not in core.error_groups', coalesce(quote_literal(left(p_group, 200)), 'null')
      using errcode = 'SP031', column = 'group', hint = '`workers events groups` lists them';
  end if;
  perform core.operator_action('group_note', p_noted_by, '{}', null,
    jsonb_build_object('group', p_group, 'note', btrim(p_note)));
end
$$;
