-- core.require_empty(p_tables) refuses while one of the tables has rows, and names it. No other transaction writes to
-- them until this one ends. Steps down call it before they drop tables. Locks the tables.
create function core.require_empty(variadic p_tables regclass[]) returns void language plpgsql volatile as $$
declare
  v_table regclass;
  v_filled boolean;
begin
  foreach v_table in array p_tables loop
    execute format('lock table %s in access exclusive mode', v_table);
    execute format('select exists (select from %s)', v_table) into v_filled;
    if v_filled then raise exception '% has rows, which going down would lose', v_table
      using hint = 'copy or delete them, then repeat `workers migrate down`'; end if;
  end loop;
end
$$;
