// Package maintenance does what must be done besides handling events. Each duty is a [Service], which the worker starts
// and stops.
//
//   - service.go: how a duty starts and stops
//   - reaper.go: makes pending again what dead workers held, and leases that ran out
//   - latency.go: samples how long events wait until they are delivered
//   - metrics.go: reads the metrics of the database
//   - generation.go: logs when the worker's generation has nothing left to do
//
// The retention sweep is a Service too; package retention has it, and internal/app passes it to the worker.
package maintenance
