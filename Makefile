# `make` lists the targets.

# The tools have a module of their own. Built without cgo they need no C compiler, and less time.
tool := CGO_ENABLED=0 go tool -modfile=tools/go.mod
tags := heavy,sqlc

.DEFAULT_GOAL := help
.PHONY: help build test test-all soak race lint fmt generate verify-generated demo ci

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## build bin/workers
	go build -o bin/ ./cmd/...

test: ## run the tests; those that need Postgres start their own
	go test ./...

test-all: ## run the tests with the slow ones and those that run sqlc
	go test -tags=$(tags) -timeout=30m ./...

soak: ## run all tests, with those that need more than a minute or are large random variants
	go test -tags=$(tags),soak -timeout=60m ./...

race: ## run the adapters and the promises of the port under the race detector
	go test -race ./internal/core/... ./tests/conformance

lint: ## run golangci-lint
	$(tool) golangci-lint run

fmt: ## format the Go code
	$(tool) golangci-lint fmt

generate: ## write what follows from the code and db/: functions in migrations, queries, who consumes what, contracts, catalog, schema, privileges
	go test ./tests/architecture -run '^(TestMigrationsHoldTheFunctions|TestTopology)$$' -update
	$(tool) sqlc generate
	go test ./tests/contracts -run '^(TestSnapshots|TestCatalog)$$' -update
	go test ./tests/sql -run '^(TestSchema|TestPrivileges)$$' -update
	go test ./internal/app/cli -run '^TestConfigurationIsDocumented$$' -update

verify-generated: ## fail if generate would change anything
	go test ./tests/architecture -tags=sqlc -run '^(TestMigrationsHoldTheFunctions|TestGeneratedQueriesAreCurrent|TestTopology)$$'
	go test ./tests/contracts -run '^(TestSnapshots|TestCatalog)$$'
	go test ./tests/sql -run '^(TestSchema|TestPrivileges)$$'
	go test ./internal/app/cli -run '^TestConfigurationIsDocumented$$'

demo: build ## publish cards and watch them arrive, on a Postgres of its own
	bin/workers demo

ci: ## run everything that has to hold before a change lands
	.ci/run
