-- core.outbox_quiet(p_channel) says whether no producer is between its decision to stay silent
-- and the end of its commit. True: everybody who stayed silent is visible by now, and the next
-- producer will find A free and notify; look once more, then sleep. False: look again shortly.
--
-- Takes S, then A, and gives A back before S: an advisory transaction lock taken inside a block
-- is released when an error ends the block, which leaves nothing behind on cancel and works
-- through a transaction pooler (a session lock would leak there). Testing A outside S, or not at
-- all, strands rows. Touches no table.
create function core.outbox_quiet(p_channel text) returns boolean
language plpgsql volatile set search_path = pg_catalog, core, pg_temp as $$
declare
  v_quiet boolean := false;
begin
  begin
    if pg_try_advisory_xact_lock(hashtextextended(p_channel, 7310579632010148197)) then
      begin
        v_quiet := pg_try_advisory_xact_lock(hashtextextended(p_channel, 2891336453310961517));
        raise exception using errcode = 'SPA00', message = 'gives A back';
      exception when sqlstate 'SPA00' then
        null;
      end;
    end if;
    raise exception using errcode = 'SPS00', message = 'gives S back';
  exception when sqlstate 'SPS00' then
    null;
  end;
  return v_quiet;
end
$$;
