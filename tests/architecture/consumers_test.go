package architecture_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"spectral/internal/app"
	"spectral/internal/core/events"
)

func TestConsumers(t *testing.T) {
	t.Parallel()
	contracts, err := app.Contracts()
	must(t, err)
	report(t, checkConsumers(app.ConsumerBuilders(), contracts))
}

// checkConsumers compares what the builders subscribe to with the contracts.
func checkConsumers(builders []app.ConsumerBuilder, contracts *events.Contracts) []string {
	var problems []string
	fail := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	consumed := make(map[string]bool)
	handlers := make(map[string]string) // by name, the event type
	for _, build := range builders {
		s := build(app.Deps{Generation: 1}).WithDefaults()
		if err := s.Validate(); err != nil {
			fail("%v", err)
		}
		if consumed[s.EventType] {
			fail("%s has two builders: let the second handler ride as a co-handler of the first", s.EventType)
		}
		consumed[s.EventType] = true
		for _, h := range s.Handlers() {
			if other, taken := handlers[h.Name]; taken && other != s.EventType {
				fail("handler %s is registered for %s and for %s: its name is its dedup key, give each its own", h.Name, other,
					s.EventType)
			}
			handlers[h.Name] = s.EventType
		}
		declared := contracts.OfType(s.EventType)
		if len(declared) == 0 {
			fail("%s has a consumer but no contract: list it in app.Contracts", s.EventType)
			continue
		}
		for _, c := range declared {
			if c.Unconsumed {
				fail("%s version %d is declared Unconsumed but has a consumer", c.Type, c.Version)
			}
			for _, h := range s.Handlers() {
				if c.Target != "" && h.Scope() != c.Target {
					fail("handler %s never runs: %s version %d is for %s alone (Target of its contract)", h.Name, c.Type, c.Version,
						c.Target)
				}
			}
		}
		for _, g := range []events.Generation{1, 2} {
			if got, want := build(app.Deps{Generation: g}).Channel, events.ChannelName(g, declared[0].Class); got != want {
				fail("%s is awaited on channel %s in generation %d, but published on %s", s.EventType, got, g, want)
			}
		}
	}
	for _, c := range contracts.All() {
		if !consumed[c.Type] && !c.Unconsumed {
			fail("%s version %d has no consumer: add a builder to app.ConsumerBuilders, or declare it Unconsumed", c.Type,
				c.Version)
		}
	}
	return problems
}

func TestConsumerProblemsAreReported(t *testing.T) {
	t.Parallel()
	noop := func(events.Tx) events.EventHandler {
		return func(context.Context, events.Envelope) error { return nil }
	}
	contract := func(eventType string, change func(*events.Contract)) events.Contract {
		c := events.Contract{Type: eventType, Version: 1, Source: events.Worlds, Payload: struct{}{},
			ContentClass: events.Operational}
		if change != nil {
			change(&c)
		}
		return c
	}
	consumer := func(eventType string, handlers ...string) app.ConsumerBuilder {
		return func(parts app.Deps) events.Subscription {
			s := events.Subscription{
				Channel: events.ChannelName(parts.Generation, ""), EventType: eventType,
				Primary: events.Registration{Name: handlers[0], Handler: noop},
			}
			for _, name := range handlers[1:] {
				s.CoHandlers = append(s.CoHandlers, events.Registration{Name: name, Handler: noop})
			}
			return s
		}
	}
	fixed := func(app.Deps) events.Subscription { return consumer("a.b", "worlds.x")(app.Deps{Generation: 1}) }
	unconsumed := func(c *events.Contract) { c.Unconsumed = true }
	slow := func(c *events.Contract) { c.Class = "agents" }
	ofPlatform := func(c *events.Contract) { c.Target = events.Platform }
	type builders = []app.ConsumerBuilder
	for _, c := range []struct {
		builders  builders
		contracts []events.Contract
		want      []string
	}{
		{builders{consumer("a.b", "worlds.x", "platform.y")},
			[]events.Contract{contract("a.b", nil), contract("a.c", unconsumed)}, nil},
		{builders{consumer("a.b", "x")}, []events.Contract{contract("a.b", nil)}, []string{"name must be scope-qualified"}},
		{builders{consumer("a.b", "worlds.x"), consumer("a.b", "worlds.y")}, []events.Contract{contract("a.b", nil)},
			[]string{"a.b has two builders"}},
		{builders{consumer("a.b", "worlds.x"), consumer("a.c", "worlds.x")},
			[]events.Contract{contract("a.b", nil), contract("a.c", nil)},
			[]string{"handler worlds.x is registered for a.b and for a.c"}},
		{builders{consumer("a.b", "worlds.x")}, nil, []string{"a.b has a consumer but no contract"}},
		{builders{consumer("a.b", "worlds.x")}, []events.Contract{contract("a.b", unconsumed)},
			[]string{"declared Unconsumed but has a consumer"}},
		{builders{consumer("a.b", "worlds.x")}, []events.Contract{contract("a.b", slow)},
			[]string{"outbox_gen_1 in generation 1, but published on outbox_gen_1_agents", "in generation 2"}},
		{builders{fixed}, []events.Contract{contract("a.b", nil)}, []string{"on channel outbox_gen_1 in generation 2"}},
		{builders{consumer("a.b", "worlds.x", "platform.y")}, []events.Contract{contract("a.b", ofPlatform)},
			[]string{"handler worlds.x never runs: a.b version 1 is for platform alone"}},
		{nil, []events.Contract{contract("a.b", nil)}, []string{"a.b version 1 has no consumer"}},
	} {
		set, err := events.NewContracts(c.contracts...)
		must(t, err)
		expect(t, checkConsumers(c.builders, set), c.want)
	}
}

func TestHandlersAreInTheContextOfTheirName(t *testing.T) {
	t.Parallel()
	var registered []string
	for _, build := range app.ConsumerBuilders() {
		for _, h := range build(app.Deps{Generation: 1}).Handlers() {
			registered = append(registered, h.Name)
		}
	}
	report(t, checkHandlerHomes(t, tree(), registered))
}

// checkHandlerHomes compares the registered names with the constants ...Name of the contexts'
// handler packages, internal/<context>/infrastructure/events.
func checkHandlerHomes(t *testing.T, tree fs.FS, registered []string) (problems []string) {
	t.Helper()
	fail := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	var declared []string
	for _, scope := range contexts {
		for _, file := range goFiles(t, tree, "internal/"+scope+"/infrastructure/events/", parser.SkipObjectResolution) {
			names := nameConstants(t, file)
			for _, name := range names {
				if !strings.HasPrefix(name, scope+".") {
					fail("%s names a handler %s: it would run as the role of another context", file.name, name)
				}
				if !slices.Contains(registered, name) {
					fail("%s has handler %s, which no builder of internal/app registers", file.name, name)
				}
			}
			declared = append(declared, names...)
		}
	}
	for _, name := range registered {
		if !slices.Contains(declared, name) {
			scope, _, _ := strings.Cut(name, ".")
			fail("handler %s is registered, but internal/%s/infrastructure/events has no constant ...Name for it", name, scope)
		}
	}
	return problems
}

// nameConstants returns the values of a file's string constants called ...Name, except in tests.
func nameConstants(t *testing.T, file goFile) (values []string) {
	t.Helper()
	for _, declaration := range file.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok || general.Tok != token.CONST || strings.HasSuffix(file.name, "_test.go") {
			continue
		}
		for _, spec := range general.Specs {
			constant := spec.(*ast.ValueSpec)
			for i, value := range constant.Values {
				literal, ok := value.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING || !strings.HasSuffix(constant.Names[i].Name, "Name") {
					continue
				}
				unquoted, err := strconv.Unquote(literal.Value)
				must(t, err)
				values = append(values, unquoted)
			}
		}
	}
	return values
}

func TestHandlersInOtherContextsAreReported(t *testing.T) {
	t.Parallel()
	small := fstest.MapFS{
		"internal/worlds/infrastructure/events/a.go": {Data: []byte(`package events

const AName, other = "worlds.a", "worlds.other"
const (
	BName = "platform.b"
	count = 1
)
`)},
		"internal/platform/infrastructure/events/c.go": {Data: []byte(`package events

const CName = "platform.c"
`)},
	}
	expect(t, checkHandlerHomes(t, small, []string{"worlds.a", "platform.b", "worlds.gone"}), []string{
		"c.go has handler platform.c, which no builder",
		"a.go names a handler platform.b: it would run as the role of another context",
		"handler worlds.gone is registered, but internal/worlds/infrastructure/events has no constant"})
}

// TestTopology compares a golden file that shows which event reaches which handlers, in which order, channel and mode,
// so that a review shows a change.
func TestTopology(t *testing.T) {
	t.Parallel()
	contracts, err := app.Contracts()
	must(t, err)
	golden := filepath.Join("testdata", "topology.txt")
	got := topology(app.ConsumerBuilders(), contracts)
	if *update {
		must(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if got != string(want) {
		t.Errorf("the topology is no longer what %s says. If that is meant, run `make generate`. It is now:\n%s", golden, got)
	}
}

// topology returns a paragraph for each event type, sorted by type.
func topology(builders []app.ConsumerBuilder, contracts *events.Contracts) string {
	const generation = 1
	consumers := make(map[string]events.Subscription)
	for _, build := range builders {
		s := build(app.Deps{Generation: generation}).WithDefaults()
		if err := s.Validate(); err != nil {
			return err.Error()
		}
		consumers[s.EventType] = s
	}
	var text strings.Builder
	text.WriteString("# Which event reaches which handlers, in their order, as seen by generation 1. Written by\n" +
		"# `make generate`.\n")
	last := ""
	for _, c := range contracts.All() {
		if c.Type == last {
			continue
		}
		last = c.Type
		var versions []string
		for _, v := range contracts.OfType(c.Type) {
			versions = append(versions, fmt.Sprintf("v%d", v.Version))
		}
		fmt.Fprintf(&text, "\n%s %s from %s\n", c.Type, strings.Join(versions, " "), c.Source)
		s, ok := consumers[c.Type]
		if !ok {
			text.WriteString("  no handler: settles when it is published\n")
			continue
		}
		fmt.Fprintf(&text, "  channel %s, %s, batches of %d, %d at a time\n", s.Channel, s.Mode, s.BatchSize, s.Concurrency)
		for i, h := range s.Handlers() {
			fmt.Fprintf(&text, "  %d. %s\n", i+1, h.Name)
			if h.ActsOutside != "" {
				fmt.Fprintf(&text, "     acts outside: %s; a replay: %s\n", h.ActsOutside, h.OnReplay)
			}
		}
	}
	return text.String()
}
