-- core.retention_window(p_subject) returns the times that the stored policy of a subject gives now: a row is tombstoned
-- if it is from expired or before, a tombstone is deleted if it is from grace_over or before, and a row from gone or
-- before has passed both. A subject without a policy gets nulls, which no comparison is true of. Reads
-- core.retention_policies.
create function core.retention_window(p_subject text, out expired timestamptz, out grace_over timestamptz,
  out gone timestamptz) returns record
language plpgsql stable as $$
declare
  v_now constant timestamptz := clock_timestamp();
begin
  select v_now - make_interval(hours => p.active_ttl_days * 24),
    v_now - make_interval(hours => p.tombstoned_grace_days * 24),
         v_now - make_interval(hours => (p.active_ttl_days + p.tombstoned_grace_days) * 24)
  into expired, grace_over, gone
  from core.retention_policies p where p.subject = p_subject and p.content_class = '*';
end
$$;
