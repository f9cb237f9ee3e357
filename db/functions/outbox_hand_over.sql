-- core.outbox_hand_over(p_from, p_to) gives one table of core the comment and the privileges of another, which then has
-- no privileges but the owner's. For the owner.
create function core.outbox_hand_over(p_from name, p_to name) returns void language plpgsql volatile as $$
declare
  v record;
begin
  execute format('comment on table core.%I is %L', p_to,
    obj_description(format('core.%I', p_from)::regclass, 'pg_class'));
  for v in select x.privilege_type || case when x.attname is null then '' else format(' (%I)', x.attname) end
        as privilege,
      case x.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(x.grantee)) end as grantee,
      case when x.is_grantable then ' with grant option' else '' end as option
    from pg_class c cross join lateral (select r.*, null::name as attname from aclexplode(c.relacl) r
      union all select r.*, a.attname from pg_attribute a, aclexplode(a.attacl) r where a.attrelid = c.oid) x
    where c.oid = format('core.%I', p_from)::regclass and x.grantee <> c.relowner loop
    execute format('grant %s on core.%I to %s%s', v.privilege, p_to, v.grantee, v.option);
    execute format('revoke %s on core.%I from %s cascade', v.privilege, p_from, v.grantee);
  end loop;
end
$$;
