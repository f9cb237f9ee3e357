// Package telemetry_test runs workers beside receivers of what they tell: a collector of OpenTelemetry, Prometheus'
// parser, and Sentry's HTTP interface.
//
//   - setup_test.go: a worker with its receivers
//   - traces_test.go: traces, from producers in Go and SQL to handlers
//   - metrics_test.go: the metrics and docs/telemetry.md
//   - stats_test.go: what workers count for `events stats --since`
//   - alerts_test.go: the alerts and the dashboard in deploy/
//   - prometheus_heavy_test.go: the alerts of a real Prometheus that scrapes a worker
//   - health_test.go: /healthz, /readyz, and where they are
//   - secrets_test.go: what no output may have
package telemetry_test
