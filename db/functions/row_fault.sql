-- core.row_fault(p_sqlstate, p_again) says whether an error is that of the row which a statement read or wrote, so that
-- the next try would fail too: not one of a lock, a conflict, a time limit, a lost prepared statement, a connection or
-- the server's state. After many tries, with p_again, only the last two are not the row's.
create function core.row_fault(p_sqlstate text, p_again boolean default false) returns boolean
language plpgsql immutable as $$
begin
  return left(p_sqlstate, 2) not in ('08', '53', '58') and left(p_sqlstate, 4) <> '57P0' and p_sqlstate <> '25006'
    and (p_again or left(p_sqlstate, 2) not in ('25', '26', '40', '55', '57', '72'));
end
$$;
