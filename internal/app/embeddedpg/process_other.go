//go:build unix && !linux

package embeddedpg

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}

// isPostmaster reports whether the process is a PostgreSQL server on this data directory.
func isPostmaster(pid int, data string) bool {
	line, err := exec.Command("ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(line), "/postgres -D "+data+" -c ")
}
