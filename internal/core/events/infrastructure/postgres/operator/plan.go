package operator

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A plan is named by a text like 20261130T221011.123456Z-214-3fa9c15b2e7d-91ab04c2d7e6: the time of its selection, the
// number of events, a digest of the act and what selects its events, and one of the events. A run that is given this
// text acts on the events of the plan only: those that have changed since are left out.

// PlanName names a plan.
type PlanName struct {
	AsOf   time.Time
	Events int
	act    string // digests
	events string
}

const planTime = "20060102T150405.000000Z"

// Plan returns the name of the plan to change the events of a selection, which filter selected.
func Plan(s Selection, change Change, filter Filter) PlanName {
	arguments := map[string]any{}
	for name, v := range change.arguments {
		if name != "by" && name != "reason" {
			arguments[name] = v
		}
	}
	selected := sha256.New()
	for i, id := range s.ids {
		_, _ = fmt.Fprintln(selected, id, s.times[i].UnixMicro())
	}
	act, _ := json.Marshal([]any{change.name, arguments, filter}) // texts, numbers and times always encode
	return PlanName{s.AsOf, s.Len(), short(act), fmt.Sprintf("%x", selected.Sum(nil))[:12]}
}

func short(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text))[:12] }

// String returns the text that [ParsePlanName] reads.
func (n PlanName) String() string {
	return fmt.Sprintf("%s-%d-%s-%s", n.AsOf.UTC().Format(planTime), n.Events, n.act, n.events)
}

// ParsePlanName reads the name of a plan.
func ParsePlanName(text string) (n PlanName, err error) {
	parts := strings.Split(text, "-")
	if len(parts) == 4 {
		n.act, n.events = parts[2], parts[3]
		if n.AsOf, err = time.Parse(planTime, parts[0]); err == nil {
			n.Events, err = strconv.Atoi(parts[1])
		}
	}
	if len(parts) != 4 || err != nil || n.Events < 0 {
		return PlanName{}, fmt.Errorf("%.80q is not a plan: pass what --dry-run printed", text)
	}
	return n, nil
}

// Check compares a plan that was confirmed with the one that would be carried out, which was selected as of the same
// time, and returns how many of its events have changed since. The error says that they are not the same act. As of one
// time a filter never selects more than it did, so fewer events are a part of those that were confirmed.
func (n PlanName) Check(now PlanName) (changed int, err error) {
	if n.act != now.act || now.Events > n.Events || now.Events == n.Events && now.events != n.events {
		return 0, fmt.Errorf("the plan %s is of another command, or of other flags: repeat --dry-run", n)
	}
	return n.Events - now.Events, nil
}
