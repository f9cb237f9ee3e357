package doctor

// checks in the order in which they are made and shown: what the others stand on comes first.
var checks = []check{
	{name: "server", look: server},
	{name: "settings", look: settings},
	{name: "migrations", look: migrations},
	{name: "schema", outside: true, look: schema},
	{name: "tables", look: tables},
	{name: "indexes", look: indexes},
	{name: "privileges", outside: true, look: privileges},
	{name: "logins", look: logins},
	{name: "clock", outside: true, look: clock},
	{name: "notifications", outside: true, look: notifications},
	{name: "queue", look: notifyQueue},
	{name: "connections", look: connections},
	{name: "generations", look: generations},
	{name: "paused", look: paused},
	{name: "unhandled", look: unhandled},
	{name: "channels", look: channels},
	{name: "listeners", look: listeners},
	{name: "leases", look: leases},
	{name: "failures", look: failures},
	{name: "retention", look: retention},
	{name: "snapshots", look: snapshots},
	{name: "transactions", look: transactions},
	{name: "vacuum", look: vacuum},
	{name: "scale", look: scale},
}
