-- core.retention_policies_check() says what is wrong with the policies: null if nothing. What has been handled has to
-- be remembered for longer than its event can come back, so event_handled.active_ttl > outbox.active_ttl + outbox.grace
-- (docs/decisions/0016). Reads core.retention_policies.
create function core.retention_policies_check() returns text language sql volatile as $$
  select case
    when count(*) filter (where p.subject in ('outbox_row', 'event_handled')) < 2
      then 'outbox_row and event_handled must both have a policy'
    when max(p.active_ttl_days) filter (where p.subject = 'event_handled')
      <= max(p.active_ttl_days + p.tombstoned_grace_days) filter (where p.subject = 'outbox_row') then
      format('event_handled is kept for %s days, which must be more than the %s + %s days of outbox_row: an event '
        'handled again would take effect again',
        max(p.active_ttl_days) filter (where p.subject = 'event_handled'),
          max(p.active_ttl_days) filter (where p.subject = 'outbox_row'),
        max(p.tombstoned_grace_days) filter (where p.subject = 'outbox_row'))
  end from core.retention_policies p where p.content_class = '*'
$$;
