package doctor

// checks in the order in which they are made and shown: what the others stand on comes first.
var checks = []check{
	{name: "server", look: server},
	{name: "settings", claim: true, look: settings},
	{name: "migrations", look: migrations},
	{name: "schema", outside: true, claim: true, build: true, look: schema},
	{name: "tables", claim: true, look: tables},
	{name: "indexes", claim: true, look: indexes},
	{name: "privileges", outside: true, claim: true, build: true, look: privileges},
	{name: "logins", claim: true, build: true, look: logins},
	{name: "clock", look: clock},
	{name: "notifications", outside: true, look: notifications},
	{name: "queue", look: notifyQueue},
	{name: "connections", look: connections},
	{name: "generations", look: generations},
	{name: "paused", look: paused},
	{name: "unhandled", claim: true, look: unhandled},
	{name: "channels", claim: true, look: channels},
	{name: "listeners", claim: true, look: listeners},
	{name: "leases", look: leases},
	{name: "failures", look: failures},
	{name: "retention", look: retention},
	{name: "snapshots", look: snapshots},
	{name: "transactions", claim: true, look: transactions},
	{name: "vacuum", look: vacuum},
	{name: "scale", look: scale},
}
