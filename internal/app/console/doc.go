// Package console serves what operators see and do in a browser, over the queries and acts of package operator.
//
//   - console.go: the handler, its options, its pages
//   - server.go: who may do what, headers, hosts, errors
//   - live.go: the stream of live figures
//   - page_*.go: what each page shows, with templates/
package console
