-- core.row_kept() raises that a row was not written, although no statement failed.
create function core.row_kept() returns void language plpgsql volatile as $$
begin
  raise exception 'a trigger or rule keeps the row as it is' using errcode = 'triggered_action_exception';
end
$$;
