package doctor

import "context"

// check examines one subject. It adds what is wrong to the examination, and returns the figures that it looked at.
type check func(context.Context, *examination) (detail string, err error)

// checks in the order in which they are made and shown: a check comes after those that it depends on.
var checks = []struct {
	name string
	run  check
}{
	{"server", server},
	{"settings", settings},
	{"migrations", migrations},
	{"schema", schema},
	{"tables", tables},
	{"indexes", indexes},
	{"privileges", privileges},
	{"logins", logins},
	{"clock", clock},
	{"notifications", notifications},
	{"queue", notificationQueue},
	{"connections", connections},
	{"generations", generations},
	{"paused", paused},
	{"unhandled", unhandled},
	{"channels", channels},
	{"listeners", listeners},
	{"leases", leases},
	{"failures", failures},
	{"retention", retention},
	{"snapshots", snapshots},
	{"transactions", transactions},
	{"vacuum", vacuum},
	{"scale", scale},
}
