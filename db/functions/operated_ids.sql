-- core.operated_ids(p_event_ids, p_occurred_ats) refuses arrays that a bulk call does not take (SP030): none, more than
-- 1000 events, or times that are not one for each id.
create function core.operated_ids(p_event_ids uuid[], p_occurred_ats timestamptz[]) returns void
language plpgsql immutable as $$
begin
  if p_event_ids is null or cardinality(p_event_ids) > 1000 then
    raise exception 'event_ids: must be an array of at most 1000 ids, not %', coalesce(cardinality(p_event_ids)::text,
      'null') using errcode = 'SP030', column = 'event_ids',
      hint = 'call it several times, or use the command: it goes in batches';
  end if;
  if p_occurred_ats is not null and cardinality(p_occurred_ats) <> cardinality(p_event_ids) then
    raise exception 'occurred_ats: % for % ids', cardinality(p_occurred_ats), cardinality(p_event_ids)
      using errcode = 'SP030', column = 'occurred_ats',
        hint = 'pass one occurred_at for each id, or null where no two events share one';
  end if;
end
$$;
