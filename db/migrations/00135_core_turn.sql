-- +goose Up
set local lock_timeout = '500ms';
set local role spectral_owner;
insert into core.leads (duty) values ('register'), ('retention_policies');
-- +goose StatementBegin
-- core.turn(p_duty) lets one transaction at a time go on, until it ends; the others wait. By the locks that core.lead takes, which nobody but the owner's functions
-- can: an advisory lock anybody could hold, and no worker would start any more. Locks a row of core.leads, and inserts it if somebody has
-- deleted it.
create function core.turn(p_duty text) returns void
language plpgsql volatile
as $$
begin
  loop
    perform from core.leads l where l.duty = p_duty for update;
    exit when found;
    insert into core.leads (duty) values (p_duty) on conflict (duty) do nothing;
  end loop;
end
$$;
-- +goose StatementEnd
reset role;

-- +goose Down
set local lock_timeout = '500ms';
set local role spectral_owner;
drop function core.turn(text);
delete from core.leads where duty in ('register', 'retention_policies');
reset role;
