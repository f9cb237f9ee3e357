-- A worker checks at its start that the database is migrated, and reads goose's own table for it.

-- +goose Up
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '5s';
  -- under another name (goose -table) the table stays as it is: the check then asks for the privilege
  if to_regclass('goose_db_version') is not null then
    grant select on goose_db_version to spectral_worker, spectral_operator;
  end if;
end
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '5s';
  if to_regclass('goose_db_version') is not null then
    revoke select on goose_db_version from spectral_worker, spectral_operator;
  end if;
end
$$;
-- +goose StatementEnd
