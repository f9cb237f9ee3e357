//go:build heavy

package embeddedpg

import (
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestOrdinaryUserRunsAServer(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root has another user to run a server as; otherwise every test here runs as an ordinary user")
	}
	u, err := user.Lookup("nobody")
	check(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	check(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	check(t, err)
	credential := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	private := func() string {
		dir := folder(t)
		check(t, os.Chown(dir, int(uid), int(gid)))
		check(t, os.Chmod(dir, 0o700))
		return dir
	}
	home := private()
	_, url, used := startChild(t, "", credential, "HOME="+home)
	mustSay(t, url, "select 'up'", "up")
	if !strings.HasPrefix(used, home) {
		t.Errorf("runs in %s", used)
	}
}
