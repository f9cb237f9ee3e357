-- core.outbox_notify() wakes the listeners of NEW.channel when the inserting transaction commits.
--
-- A notifying commit holds a database-wide lock through its WAL flush, so not every commit may
-- notify. One producer at a time is elected per channel by two advisory transaction locks, keyed
-- by a hash of the channel with a seed each:
--
--   S, shared     every producer in its commit holds it; a listener at its barrier takes it alone
--   A, exclusive  the elected notifier
--
--   S refused: a listener is at its barrier and may miss us: notify.
--   A granted: we are elected: notify.
--   A refused: another commit notifies for us: stay silent.
--
-- Postgres releases both after the row is visible; core.outbox_barrier() is the other half. The
-- setting spectral.notified_<channel>, local to the transaction, limits this to one notification per transaction.
--
-- Do not change this function: publishers compose channel names, this function only reads NEW.channel. It runs as
-- whichever role is current when the trigger fires, with that role's search_path, hence no
-- operator, and every function and type qualified. It has no SET clause (that costs 8 %) and is
-- no definer. Assignments, not PERFORM: a PERFORM runs a separate query, three of them cost a
-- sixth of the commits.
create function core.outbox_notify() returns trigger language plpgsql volatile as $$
declare
  v_setting constant pg_catalog.text := pg_catalog.concat('spectral.notified_', NEW.channel);
  v_unused pg_catalog.text;
begin
  if pg_catalog.texteq(pg_catalog.current_setting(v_setting, true), 'y') then return null; end if;
  v_unused := pg_catalog.set_config(v_setting, 'y', true);
  if pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashtextextended(NEW.channel, 7310579632010148197)) then
    if not pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(NEW.channel, 2891336453310961517)) then
      return null;
    end if;
  end if;
  v_unused := pg_catalog.pg_notify(NEW.channel, NEW.id::pg_catalog.text);
  return null;
end
$$;
create constraint trigger outbox_notify
  after insert on core.outbox
  deferrable initially deferred
  for each row when (new.status = 'pending') execute function core.outbox_notify();
