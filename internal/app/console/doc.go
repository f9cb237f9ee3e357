// Package console serves what operators see and do in a browser, over the queries and acts of package operator.
//
//   - console.go: the handler, its options, its pages
//   - server.go: hosts, headers, bounds, pages, acts and errors
//   - identity.go: who makes a request
//   - live.go: the stream of a page that is watched
//   - assets.go: scripts and styles; templates and assets are embedded
//   - page_overview.go, page_events.go, page_failures.go, page_plan.go, page_operations.go, page_topology.go,
//     page_activity.go: what pages show, and what their forms do
//   - chart.go, format.go: what templates draw and write
package console
