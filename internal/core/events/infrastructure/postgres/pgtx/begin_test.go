package pgtx

import "testing"

// Roles are ours alone today; a name must stay a name all the same.
func TestARolesNameIsQuoted(t *testing.T) {
	t.Parallel()
	want := "select pg_catalog.set_config('search_path', '', true), pg_catalog.set_config('role', 'odd ''role', true), " +
		"pg_catalog.set_config('spectral.workspace_id', '', true)"
	if got := RoleSettings("odd 'role", NoWorkspace); got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}
