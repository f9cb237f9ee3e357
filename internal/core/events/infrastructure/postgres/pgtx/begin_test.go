package pgtx

import "testing"

// Roles are ours alone today; a name must stay a name all the same.
func TestARolesNameIsQuoted(t *testing.T) {
	t.Parallel()
	want := `set local search_path = ''; set local role "odd ""role""; reset role --"; ` +
		`select pg_catalog.set_config('spectral.workspace_id', '', true)`
	if got := RoleSettings(`odd "role"; reset role --`, NoWorkspace); got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}
