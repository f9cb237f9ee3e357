package check

import (
	"strconv"
	"strings"
)

// unquoted undoes escapes of strconv.Quote that are not needed.
var unquoted = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// Visible returns s with everything that a terminal may act on escaped as in a Go string: escape sequences, line ends,
// marks that change the direction of writing.
func Visible(s string) string {
	quoted := strconv.QuoteToGraphic(s)
	return unquoted.Replace(quoted[1 : len(quoted)-1])
}
