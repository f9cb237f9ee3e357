-- core.generation_hint() says what to do while no generation is live. Reads core.deployments.
create function core.generation_hint() returns text language sql stable as $$
  select coalesce((select format('start the workers of a new generation, or make the newest live again: '
    '`workers generation register %1$s`, or: select core.generation_register(%1$s, null)', max(d.generation))
    from core.deployments d where d.status = 'draining' having count(*) > 0),
    'start a worker: it registers its generation')
$$;
