package pgtx

import "testing"

// Roles are ours alone today; a name must stay a name all the same.
func TestARolesNameIsQuoted(t *testing.T) {
	t.Parallel()
	want := `set local search_path = ''; set local role "odd ""role""; reset role --"; ` +
		`set local spectral.workspace_id = ''`
	if got := RoleSettings(`odd "role"; reset role --`, NoWorkspace); got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}
