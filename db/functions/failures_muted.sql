-- core.failures_muted(p_failures, p_muted) says whether all failures in a column handler_failures belong to the groups
-- of errors p_muted. No failure is not muted.
create function core.failures_muted(p_failures jsonb, p_muted text[]) returns boolean language sql immutable as $$
  select coalesce(bool_and(coalesce(f.value ->> 'group' = any (p_muted), false)), false)
  from jsonb_each(p_failures) as f
$$;
