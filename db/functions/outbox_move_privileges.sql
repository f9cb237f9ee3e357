-- core.outbox_move_privileges(p_from, p_to, p_privileges) grants these privileges of others than the owner on one table
-- of core, and revokes them on another. For the owner.
create function core.outbox_move_privileges(p_from name, p_to name, p_privileges aclitem[]) returns void
language plpgsql volatile as $$
declare
  v record;
begin
  for v in select x.privilege_type as privilege,
      case x.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(x.grantee)) end as grantee,
      case when x.is_grantable then ' with grant option' else '' end as option
    from aclexplode(p_privileges) x where x.grantee <> x.grantor loop
    execute format('grant %s on core.%I to %s%s', v.privilege, p_to, v.grantee, v.option);
    execute format('revoke %s on core.%I from %s cascade', v.privilege, p_from, v.grantee);
  end loop;
end
$$;
