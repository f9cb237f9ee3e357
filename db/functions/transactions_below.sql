-- core.transactions_below(p_below) names the running transactions that have an id below p_below, for people: at most
-- five, null for none. Every role sees them in pg_locks. Their age is added where pg_stat_activity shows it. Reads the
-- catalogs.
create function core.transactions_below(p_below xid8) returns text language sql volatile as $$
  select count(*) || case count(*) when 1 then ' transaction (' else ' transactions (' end
         || string_agg(t.who, ', ' order by t.oldest desc, t.who) filter (where t.n <= 5) || case when count(*) > 5
           then ', ...)' else ')' end
  from (select max(age(l.transactionid)) as oldest, row_number() over (order by max(age(l.transactionid)) desc) as n,
               coalesce('pid ' || l.pid || coalesce(' of ' || a.usename,
                 '') || coalesce(' in ' || nullif(a.application_name, ''), '')
                 || coalesce(' at ' || a.datname, '')
                 || coalesce(' since ' || to_char(a.xact_start at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), ''),
                 'a prepared one') as who from pg_locks l left join pg_stat_activity a on a.pid = l.pid
        where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
          and age(l.transactionid) > age(p_below::xid)
        group by l.virtualtransaction, l.pid, a.usename, a.application_name, a.datname, a.xact_start) as t
  having count(*) > 0
$$;
