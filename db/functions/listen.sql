-- core.listen(p_channels) listens on channels for the session. It is a function because pg_stat_statements would keep a
-- text of LISTEN for each generation.
create function core.listen(p_channels text[]) returns void language plpgsql volatile as $$
declare
  v_channel text;
begin
  foreach v_channel in array p_channels loop
    execute format('listen %I', v_channel);
  end loop;
end
$$;
