-- core.outbox_barrier(p_channel) reports whether no producer is between its decision to stay silent and the end of its
-- commit. True: the rows of every silent producer are visible, and the next producer finds A free and notifies: poll,
-- then wait. False: poll, and ask again soon (docs/decisions/0003).
--
-- It takes S, then A, and releases A before S. An advisory transaction lock that is taken inside a block is released
-- when an error ends the block: that leaves nothing behind on a cancel, and works through a transaction pooler, where a
-- session lock would leak. Testing A without holding S, or not at all, leaves rows behind. Touches no table.
create function core.outbox_barrier(p_channel text) returns boolean
language plpgsql volatile set search_path = pg_catalog, core, pg_temp as $$
declare
  v_passed boolean := false;
begin
  begin
    if pg_try_advisory_xact_lock(hashtextextended(p_channel, 7310579632010148197)) then
      begin
        v_passed := pg_try_advisory_xact_lock(hashtextextended(p_channel, 2891336453310961517));
        raise exception using errcode = 'SPA00', message = 'gives A back';
      exception when sqlstate 'SPA00' then
        null;
      end;
    end if;
    raise exception using errcode = 'SPS00', message = 'gives S back';
  exception when sqlstate 'SPS00' then
    null;
  end;
  return v_passed;
end
$$;
