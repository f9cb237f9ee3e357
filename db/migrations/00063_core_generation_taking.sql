-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
-- +goose StatementBegin
-- core.generation_taking(p_generation) refuses a generation that takes no events: none given, unknown or retired (SP019).
-- A draining one takes them: a worker of its own may be draining it. The caller has its transaction id by then: whoever
-- retires the generation waits for it as for a publisher. Reads core.deployments.
create function core.generation_taking(p_generation bigint) returns void
language plpgsql volatile
as $$
declare
  v_status text;
begin
  select d.status into v_status from core.deployments d where d.generation = p_generation;
  if v_status is null or v_status = 'retired' then
    raise exception 'generation: % is %', coalesce(p_generation::text, 'null'),
        case when p_generation is null then 'none' else coalesce(v_status, 'not registered') end
      using errcode = 'SP019', column = 'generation',
            hint = coalesce('the highest live one is ' || (select max(d.generation) from core.deployments d where d.status = 'live'),
              'none is live: start a worker, or select core.generation_register(1)');
  end if;
end
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
set local lock_timeout = '500ms';
drop function core.generation_taking(bigint);
