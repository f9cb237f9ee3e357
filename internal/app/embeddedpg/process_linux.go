package embeddedpg

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

func setDeathSignal(attr *syscall.SysProcAttr, death syscall.Signal) { attr.Pdeathsig = death }

// isPostmaster reports whether the process is a PostgreSQL server on this data directory.
func isPostmaster(pid int, data string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	args := bytes.Split(line, []byte{0})
	return len(args) > 2 && filepath.Base(string(args[0])) == "postgres" &&
		string(args[1]) == "-D" && sameFolder(string(args[2]), data)
}

// sameFolder compares folders, not names: the server may have been started under another path.
func sameFolder(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return a == b || errA == nil && errB == nil && os.SameFile(infoA, infoB)
}
