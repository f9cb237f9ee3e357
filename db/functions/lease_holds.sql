-- core.lease_holds(p_claimed_at, p_lease_seconds) says whether a lease has not run out yet, by the
-- database clock and no other. One that has run out is over, also before the reaper comes by.
create function core.lease_holds(p_claimed_at timestamptz, p_lease_seconds double precision) returns boolean
language sql volatile
-- not by when it runs out, which may lie beyond all times
as $$
  select p_claimed_at > clock_timestamp() - make_interval(secs => p_lease_seconds)
$$;
