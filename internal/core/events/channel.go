package events

import (
	"fmt"
	"strconv"
)

// Generation is a deployment generation (SPECTRAL_GENERATION): a worker handles the events
// stamped with its own and no others.
type Generation int64

// MaxGeneration keeps channel names within 63 bytes.
const MaxGeneration Generation = 999_999_999_999

// ParseGeneration reads a generation as an operator writes it.
func ParseGeneration(s string) (Generation, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || Generation(n) > MaxGeneration {
		return 0, fmt.Errorf("%.40q is not a deployment generation: it must be a whole number from 1 to %d", s, MaxGeneration)
	}
	return Generation(n), nil
}

// DefaultChannel is the column default of core.outbox. No worker listens to it: the poll finds a row on it.
const DefaultChannel = "outbox_default"

// ChannelName is the NOTIFY channel of a generation and a processing class, outbox_gen_<N> or outbox_gen_<N>_<class>.
func ChannelName(g Generation, class string) string {
	name := "outbox_gen_" + strconv.FormatInt(int64(g), 10)
	if class != "" {
		name += "_" + class
	}
	return name
}

// DefaultClass is how the processing class without a name is called where one must be named. No contract may
// declare it.
const DefaultClass = "default"
