package architecture_test

// A rule says what files must not import. In its patterns * is a part of one path element, ... is any string (x/...
// also matches x), and {context} is each context, the same one in the whole rule. Files are paths from the module's
// root. Test files count like other files. A package's external tests may always import it.
//
// A rule that matches no file, a forbidden package that does not exist, and an exception that is not used fail the
// test.
type rule struct {
	name   string
	reason string
	files  string
	forbid []string
	except []exception
}

// exception allows imports to files; an empty pattern is any.
type exception struct{ files, imports string }

const (
	pgx   = "github.com/jackc/..."
	sql   = "database/sql/..."
	goose = "github.com/pressly/goose/..."
	fx    = "go.uber.org/..."
	cobra = "github.com/spf13/..."
	nats  = "github.com/nats-io/..."
	tea   = "charm.land/..."
)

// importRules are the rules. If your change breaks one, move the code; change a rule only together with
// ARCHITECTURE.md.
var importRules = append(adapterRules(), []rule{
	{name: "contexts", files: "internal/{context}/...",
		reason: "contexts know each other by events alone: of ours they import the event port, checks and themselves",
		forbid: []string{"spectral/..."},
		except: []exception{{imports: "spectral/internal/core/events"}, {imports: "spectral/internal/core/check"},
			{imports: "spectral/internal/{context}/..."}}},
	{name: "core", files: "internal/core/...",
		reason: "the event system serves every context and knows none, nor how it is put together",
		forbid: []string{"spectral/..."}, except: []exception{{imports: "spectral/internal/core/..."}}},
	{name: "ports", files: "internal/core/events/*.go",
		reason: "the event port is what all else stands on: it imports nothing of ours, adapters least of all",
		forbid: []string{"spectral/..."}},
	{name: "domain", files: "internal/{context}/domain/...",
		reason: "domain is the business alone: no driver, no framework, no layer that stands on it",
		forbid: []string{pgx, sql, goose, fx, "spectral/internal/{context}/application/...",
			"spectral/internal/{context}/infrastructure/..."}},
	{name: "application", files: "internal/{context}/application/...",
		reason: "use cases name what they need as interfaces: drivers and adapters are behind them",
		forbid: []string{pgx, sql, goose, "spectral/internal/{context}/infrastructure/..."}},
	{name: "contract shapes", files: "internal/{context}/contracts/...",
		reason: "a contract is frozen and the domain is not: of ours it imports the event port alone",
		forbid: []string{"spectral/..."}, except: []exception{{imports: "spectral/internal/core/events"}}},
	{name: "contracts", files: "...",
		reason: "a consumer parses its own struct: the producer's payloads are for the producer, the composition and tests",
		forbid: []string{"spectral/internal/{context}/contracts/..."},
		except: []exception{{files: "internal/{context}/..."}, {files: "internal/app/..."}, {files: "tests/..."}}},
	{name: "fx", files: "...", reason: "constructors are plain: only the composition knows what calls them",
		forbid: []string{fx}, except: []exception{{files: "internal/app/..."}}},
	{name: "pgx", files: "...", reason: "the driver is an adapter's business; the port names it in one file, for Tx",
		forbid: []string{pgx},
		except: []exception{{files: "internal/.../infrastructure/..."}, {files: "internal/core/events/tx.go"},
			{files: "internal/app/..."}, {files: "tests/..."}}},
	{name: "NATS", files: "...", reason: "contexts, contracts and handlers are the same whichever way events take",
		forbid: []string{nats},
		except: []exception{{files: "internal/core/events/infrastructure/jetstream/..."},
			{files: "internal/app/embeddednats/..."}, {files: "tests/..."}}},
	{name: "adapter: jetstream", files: "...", reason: "only the composition chooses a broker",
		forbid: []string{"spectral/internal/core/events/infrastructure/jetstream/..."},
		except: []exception{{files: "internal/app/..."}, {files: "tests/..."}}},
	{name: "embedded NATS", files: "internal/app/embeddednats/...",
		reason: "running a server has nothing to do with what goes through it", forbid: []string{"spectral/..."}},
	{name: "command line without SQL", files: "internal/app/cli/...",
		reason: "package operator has the queries of operators; the command line and the doctor share them",
		forbid: []string{pgx, sql}},
	{name: "terminal view", files: "internal/app/top/...",
		reason: "it shows what package operator reads, and acts by it; flags and settings are the command line's",
		forbid: []string{"spectral/...", pgx, sql},
		except: []exception{{imports: "spectral/internal/core/events/infrastructure/postgres/operator"},
			{imports: "spectral/internal/core/events"}, {imports: "spectral/internal/core/check"}}},
	{name: "doctor without SQL", files: "internal/app/doctor/...",
		reason: "generated queries, on a connection of package operator, read the facts, and the doctor judges them",
		forbid: []string{pgx, sql}},
	{name: "console", files: "internal/app/console/...",
		reason: "package operator has what operators see and do, and the console can be mounted in any server",
		forbid: []string{"spectral/..."},
		except: []exception{{imports: "spectral/internal/core/events/infrastructure/postgres/operator"},
			{imports: "spectral/internal/core/events"}}},
	{name: "doctor's generated queries", files: "...",
		reason: "package operator gives them a read-only transaction, and the doctor judges what they return",
		forbid: []string{"spectral/internal/core/events/infrastructure/postgres/doctordb/..."},
		except: []exception{{files: "internal/core/events/infrastructure/postgres/operator/..."},
			{files: "internal/app/doctor/..."}}},
	{name: "cobra", files: "...", reason: "flags and commands are the command line's; what they call takes plain values",
		forbid: []string{cobra}, except: []exception{{files: "internal/app/cli/..."}}},
	{name: "terminals", files: "...", reason: "only the view in a terminal draws; what it shows is plain data",
		forbid: []string{tea, "github.com/charmbracelet/..."}, except: []exception{{files: "internal/app/top/..."}}},
	{name: "core's generated queries", files: "...",
		reason: "queries on core's tables are the adapters' own: of events, and of retention, which sweeps the same tables",
		forbid: []string{"spectral/internal/core/events/infrastructure/postgres/coredb/..."},
		except: []exception{{files: "internal/core/events/infrastructure/postgres/..."},
			{files: "internal/core/retention/infrastructure/postgres/..."}}},
	{name: "a context's generated queries", files: "...",
		reason: "queries on a context's tables belong to its repositories",
		forbid: []string{"spectral/internal/{context}/infrastructure/postgres/{context}db/..."},
		except: []exception{{files: "internal/{context}/infrastructure/postgres/*.go"}}},
	{name: "app", files: "...", reason: "the composition is the top of the house: nothing below may lean on it",
		forbid: []string{"spectral/internal/app/..."},
		except: []exception{{files: "cmd/..."}, {files: "internal/app/..."}, {files: "tests/..."}}},
	{name: "cmd", files: "cmd/...",
		reason: "main is a few lines: what a command does is in internal/app/cli, where tests reach it",
		forbid: []string{"spectral/..."}, except: []exception{{imports: "spectral/internal/app/cli"}}},
	{name: "embedded Postgres", files: "internal/app/embeddedpg/...",
		reason: "running a server has nothing to do with what is stored in it",
		forbid: []string{"spectral/..."}, except: []exception{{imports: "spectral/internal/core/check"}}},
	{name: "migrations", files: "...",
		reason: "only the composition migrates, tests compare and make writes; everything else finds the database as it is",
		forbid: []string{"spectral/db/..."},
		except: []exception{{files: "internal/app/..."}, {files: "internal/dev/..."}, {files: "tests/..."}}},
	{name: "tests", files: "...", reason: "what ships does not depend on what tries it",
		forbid: []string{"spectral/tests/..."}, except: []exception{{files: "tests/..."}}},
	{name: "tests of events", files: "...", reason: "what ships does not depend on what tries it",
		forbid: []string{"spectral/internal/core/events/eventstest/..."},
		except: []exception{{files: "..._test.go"}, {files: "tests/..."}}},
}...)

const adapter = "internal/core/events/infrastructure/postgres"

// adapterOrder is the order in which an event passes through the adapter. Each package imports only those before it.
var adapterOrder = []string{
	"coredb", "pgtx", "publish", "journal", "notify", "dispatch", "lease", "maintenance", "worker",
}

func adapterRules() []rule {
	var rules []rule
	for i, name := range adapterOrder[:len(adapterOrder)-1] {
		r := rule{
			name: "adapter: " + name, reason: "an event passes through the adapter's packages in one direction",
			files: adapter + "/" + name + "/...",
		}
		for _, later := range adapterOrder[i+1:] {
			r.forbid = append(r.forbid, "spectral/"+adapter+"/"+later)
		}
		rules = append(rules, r)
	}
	operator := rule{
		name: "adapter: operator", reason: "operators use SQL functions: what workers do is not theirs",
		files: adapter + "/operator/...",
	}
	for _, other := range adapterOrder[2:] {
		operator.forbid = append(operator.forbid, "spectral/"+adapter+"/"+other)
	}
	return append(rules, operator, rule{
		name: "adapter: worker", reason: "only the composition starts workers",
		files: "...", forbid: []string{"spectral/" + adapter + "/worker"},
		except: []exception{{files: "internal/app/..."}, {files: "tests/..."}},
	})
}
