-- Which role may publish as which source. A login publishes as a source when it is, or inherits
-- from, a role listed here; to let a new login publish as worlds and do nothing else:
--
--   grant spectral_publisher to my_login;
--   insert into core.publisher_sources (role_name, source) values ('my_login', 'worlds');

-- +goose Up
set local lock_timeout = '5s';
set local role spectral_owner;
create table core.publisher_sources (
  role_name text not null,
  source text not null,
  constraint publisher_sources_pk primary key (role_name, source),
  constraint publisher_sources_source_known check (source in ('platform', 'worlds', 'core'))
);
comment on table core.publisher_sources is 'Which role may publish as which source.';
insert into core.publisher_sources (role_name, source) values
  ('spectral_platform', 'platform'),
  ('spectral_worlds', 'worlds'),
  ('spectral_owner', 'core');
grant select on core.publisher_sources to spectral_publisher, spectral_operator;
reset role;

-- +goose Down
-- +goose StatementBegin
do $$
begin
  set local lock_timeout = '5s';
  if exists (select from core.publisher_sources
             where (role_name, source) not in
               (('spectral_platform', 'platform'), ('spectral_worlds', 'worlds'), ('spectral_owner', 'core'))) then
    raise exception 'core.publisher_sources has rows of your own: going down would lose them';
  end if;
end
$$;
-- +goose StatementEnd
drop table core.publisher_sources;
