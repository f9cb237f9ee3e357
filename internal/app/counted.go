package app

import (
	"fmt"
	"strings"
)

// Counted returns a number with its noun: 1 event, 2 events, 2 crashes.
func Counted[N int | int32 | int64](n N, name string) string {
	if n == 1 {
		return "1 " + name
	}
	if strings.HasSuffix(name, "sh") || strings.HasSuffix(name, "x") {
		name += "e"
	}
	return fmt.Sprintf("%d %ss", n, name)
}
