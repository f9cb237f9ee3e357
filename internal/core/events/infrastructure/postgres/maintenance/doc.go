// Package maintenance does what must be done besides handling events. Each duty is a [Service], which the worker starts
// and stops.
//
//   - service.go: how a duty starts and stops
//   - reaper.go: makes pending again what dead workers held, and leases that ran out
//   - partitions.go: makes partitions of core.outbox ahead
//   - breakers.go: probes handlers whose breakers are open, and closes them
//   - operations.go: carries on replays and discards of many events
//   - relayed.go: makes pending again what a broker has lost
//   - observe.go: reads metrics of the database, writes statistics, and watches the state of the generation
//
// The retention sweep is a Service too; package retention has it, and internal/app passes it to the worker.
package maintenance
