// Package telemetry records what happens to events: a span for each publication and each call of a handler, and the
// metrics of docs/telemetry.md. It uses OpenTelemetry's API alone: internal/app says where spans and metrics go.
//
//   - telemetry.go: what a process records with
//   - consumer.go: what a consumer records
//   - stats.go: counts events for core.event_stats
//   - metrics.go: the metrics that this process counts
//   - database.go: the metrics that it reads from the database
package telemetry
