package console

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// functions are what templates call.
var functions = template.FuncMap{
	"actions": func(prefix string, now time.Time, all []operator.Action) any {
		return struct {
			Prefix  string
			Now     time.Time
			Actions []operator.Action
		}{prefix, now, all}
	},
	"adjust": func(prefix string, p planPage) any {
		return struct {
			Prefix string
			Plan   planPage
		}{prefix, p}
	},
	"filter": func(prefix, path string, form filterForm) any {
		return struct {
			Prefix, Path string
			Form         filterForm
		}{prefix, path, form}
	},
	"rows": func(prefix string, now time.Time, all []operator.Event, choose bool) any {
		return struct {
			Prefix string
			Now    time.Time
			Events []operator.Event
			Select bool
		}{prefix, now, all, choose}
	},
	"ago": ago, "bar": bar, "bounded": bounded, "count": count, "counted": counted, "duration": durationText,
	"first": firstLine, "id": shortID, "lanes": lanes, "latest": latest, "link": link, "operation": operationOf,
	"percent": percent, "pretty": pretty, "query": query, "rate": rateText, "screens": func() []screen { return screens },
	"seconds": secondsText, "section": section, "sparkline": sparkline, "text": visible, "topology": topologyChart,
	"until": until, "waiting": waiting, "when": when, "words": words,
}

// screen is an entry of the navigation.
type screen struct{ Name, Path, Section string }

var screens = []screen{
	{"Overview", "/", ""}, {"Events", "/events", "events"}, {"Failures", "/failures", "failures"},
	{"Topology", "/topology", "topology"}, {"Handlers", "/handlers", "handlers"},
	{"Generations", "/generations", "generations"}, {"Operations", "/operations", "operations"},
	{"Activity", "/activity", "activity"}, {"Health", "/health", "health"},
}

// section returns the first element of a path: the screen that it belongs to.
func section(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "plan":
		return "events"
	case "flow":
		return ""
	}
	return first
}

// link returns a path below prefix whose elements are escaped.
func link(prefix string, elements ...any) string {
	for _, e := range elements {
		prefix += "/" + url.PathEscape(textOf(e))
	}
	return prefix
}

// query returns a path with a query of names and values in turn; empty ones are left out.
func query(path string, pairs ...any) string {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if v := textOf(pairs[i+1]); v != "" {
			q.Add(textOf(pairs[i]), v)
		}
	}
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// textOf returns a value, or what a pointer points to, as text; empty for a nil pointer.
func textOf(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case *string:
		if v == nil {
			return ""
		}
		return *v
	case error:
		return v.Error()
	case fmt.Stringer:
		return v.String()
	}
	p := reflect.ValueOf(v)
	if p.Kind() == reflect.Pointer && p.IsNil() {
		return ""
	}
	return fmt.Sprint(reflect.Indirect(p))
}

// visible returns a text in which control characters and marks that change the direction of text are shown as escapes.
func visible(v any) string {
	s := textOf(v)
	hidden := func(r rune) bool {
		return r != '\n' && r != '\t' && (unicode.Is(unicode.Cf, r) || unicode.IsControl(r) || r == utf8.RuneError)
	}
	if strings.IndexFunc(s, hidden) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// firstLine returns the first line of a text, at most 200 characters of it.
func firstLine(v any) string {
	line, _, more := strings.Cut(visible(v), "\n")
	if runes := []rune(line); len(runes) > 200 {
		line, more = string(runes[:200]), true
	}
	if more {
		line += " …"
	}
	return line
}

// words returns a name of a state as words.
func words(v any) string { return visible(strings.ReplaceAll(textOf(v), "_", " ")) }

// count returns a number with separators of thousands.
func count(v any) string {
	s := textOf(v)
	digits := strings.TrimPrefix(s, "-")
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if strings.HasPrefix(s, "-") {
		return "−" + digits
	}
	return digits
}

// bounded returns a number that is exact up to [operator.MaxWaiting].
func bounded(n int) string {
	if n > operator.MaxWaiting {
		return count(operator.MaxWaiting) + "+"
	}
	return count(n)
}

// counted returns a number and what it counts.
func counted(n int, name string) string {
	_, plural, _ := strings.Cut(operator.Counted(n, name), " ")
	return bounded(n) + " " + plural
}

// rateText returns a number of events per second.
func rateText(perSecond float64) string {
	switch {
	case perSecond >= 100:
		return count(int64(math.Round(perSecond)))
	case perSecond >= 10:
		return strconv.FormatFloat(perSecond, 'f', 1, 64)
	default:
		return strconv.FormatFloat(math.Round(perSecond*100)/100, 'g', -1, 64)
	}
}

// percent returns a part of a whole.
func percent(part, whole any) string {
	a, _ := strconv.ParseFloat(textOf(part), 64)
	b, _ := strconv.ParseFloat(textOf(whole), 64)
	if b == 0 {
		return "0 %"
	}
	return strconv.FormatFloat(math.Round(a/b*1000)/10, 'f', -1, 64) + " %"
}

// secondsText returns a percentile; beyond the last bound of measures its value is not known.
func secondsText(p operator.Percentiles, seconds *float64) string {
	switch {
	case seconds != nil:
		return durationText(*seconds)
	case p.Count > 0:
		return "> " + durationText(operator.LongestMeasured().Seconds())
	default:
		return "–"
	}
}

// durationText returns seconds in a unit that suits them. A time that the clocks make negative is none.
func durationText(seconds float64) string {
	switch s := max(seconds, 0); {
	case s == 0:
		return "0 s"
	case s < 0.9995:
		return strconv.FormatFloat(s*1000, 'g', 3, 64) + " ms"
	case s < 60:
		return strconv.FormatFloat(s, 'g', 3, 64) + " s"
	case s < 3600:
		return fmt.Sprintf("%d min", int(s/60))
	case s < 86400:
		return fmt.Sprintf("%d h %d min", int(s/3600), int(s/60)%60)
	default:
		return fmt.Sprintf("%s d %d h", count(int(s/86400)), int(s/3600)%24)
	}
}

// moment returns the time that v is or points to; the zero time if there is none.
func moment(v any) (t time.Time) {
	switch v := v.(type) {
	case time.Time:
		return v
	case *time.Time:
		if v != nil {
			return *v
		}
	}
	return t
}

// when returns a time beside now, with the whole of it as a title.
func when(now time.Time, v any) template.HTML {
	t := moment(v)
	if distance := now.Sub(t); distance < 0 {
		return timeElement(t, "in "+age(-distance))
	}
	return timeElement(t, age(now.Sub(t))+" ago")
}

// ago returns how long ago a time was.
func ago(now time.Time, v any) template.HTML { return timeElement(moment(v), age(now.Sub(moment(v)))) }

// age returns a time span without parts of a second.
func age(d time.Duration) string { return durationText(d.Truncate(time.Second).Seconds()) }

func timeElement(t time.Time, says string) template.HTML {
	if t.IsZero() {
		return "–"
	}
	t = t.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`, t.Format(time.RFC3339Nano),
		t.Format("2006-01-02 15:04:05.000 UTC"), says))
}

// shortID returns an id that is shortened in the middle, with the whole of it as a title and to be copied.
func shortID(v any) template.HTML {
	whole := visible(v)
	short := []rune(whole)
	if len(short) > 16 {
		short = []rune(string(short[:8]) + "…" + string(short[len(short)-6:]))
	}
	e := template.HTMLEscapeString
	return template.HTML(fmt.Sprintf(`<code class="id" title="%s" data-copy="%[1]s">%s</code>`, e(whole),
		e(string(short))))
}

// maxPayload is how much of a payload a page shows, in bytes.
const maxPayload = 256 << 10

// pretty returns JSON with indents. Numbers and texts stay as they are stored: they are not read.
func pretty(raw json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		b.Reset()
		b.Write(raw)
	}
	if b.Len() > maxPayload {
		return visible(strings.ToValidUTF8(b.String()[:maxPayload], "")) + "\n… more than " + count(maxPayload>>10) +
			" KiB: `workers events show` prints all of it"
	}
	return visible(b.String())
}

// until says how long a backlog lasts, or that it grows.
func until(backlog int, publishedPerSecond, handledPerSecond float64) string {
	switch net := handledPerSecond - publishedPerSecond; {
	case backlog == 0:
		return "empty"
	case net > 0:
		return "empties in about " + durationText(math.Ceil(float64(backlog)/net))
	case net < 0:
		return "grows"
	case handledPerSecond == 0:
		return "stands still"
	default:
		return "stays as large"
	}
}

// latest returns the time that matters most for an event in its status.
func latest(e operator.Event) time.Time {
	switch e.Status {
	case operator.Failed, operator.Discarded, operator.Delivered, operator.Expired:
		return *cmp.Or(e.DeletedAt, e.DeliveredAt, e.FailedAt, &e.CreatedAt)
	case operator.InFlight:
		return *cmp.Or(e.ClaimedAt, &e.CreatedAt)
	case operator.Relayed:
		return *cmp.Or(e.RelayedAt, &e.CreatedAt)
	default:
		return e.AvailableAt
	}
}

// operationOf returns the id of the operation that the details of an action name, or nothing.
func operationOf(details json.RawMessage) string {
	var named struct{ Operation string }
	if json.Unmarshal(details, &named) != nil {
		return ""
	}
	if _, err := operator.ParseID(named.Operation); err != nil {
		return ""
	}
	return named.Operation
}

// waiting returns how many events of an operation were replayed and have not settled.
func waiting(acted, delivered, failed int) int { return max(acted-delivered-failed, 0) }
