-- core.row_fault(p_sqlstate) says whether an error is that of the row which a statement read or wrote, so that the next
-- try would fail too: not one of a lock, a conflict, a time limit, a connection or the server's state.
create function core.row_fault(p_sqlstate text) returns boolean
language plpgsql immutable as $$
begin
  return left(p_sqlstate, 2) not in ('08', '25', '40', '53', '55', '57', '58', '72');
end
$$;
