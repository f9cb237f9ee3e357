# `make` lists the targets. Times are for 2 cores with warm module and build caches.

# The tools have a module of their own. Built without cgo they need no C compiler, and less time.
tool := CGO_ENABLED=0 go tool -modfile=tools/go.mod
tags := heavy,sqlc

.DEFAULT_GOAL := help
.PHONY: help build test test-all soak race lint fmt generate verify-generated demo ci

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## build bin/workers (20 s from nothing)
	go build -o bin/ ./cmd/...

test: ## run the tests, which start their own Postgres (2.5 min)
	go test ./...

test-all: ## run the heavy tests too (about 9 min)
	go test -tags=$(tags) -timeout=30m ./...

soak: ## run all tests with the long storms and full models (each package may take an hour)
	go test -tags=$(tags),soak -timeout=60m ./...

race: ## run the adapters and the conformance suite under the race detector (30 s)
	go test -race ./internal/core/... ./tests/conformance

lint: ## run golangci-lint (10 s; 1 min the first time)
	$(tool) golangci-lint run

fmt: ## format the Go code (10 s)
	$(tool) golangci-lint fmt

generate: ## write the files that follow from the code and db/ (1 min)
	go test ./tests/architecture -run '^(TestMigrationsHoldTheFunctions|TestTopology)$$' -update
	$(tool) sqlc generate
	go test ./tests/contracts -run '^(TestSnapshots|TestCatalog)$$' -update
	go test ./tests/sql -run '^(TestSchema|TestPrivileges)$$' -update
	go test ./internal/app/cli -run '^TestConfigurationIsDocumented$$' -update

verify-generated: ## fail if generate would change anything (1 min)
	go test ./tests/architecture -tags=sqlc -run '^(TestMigrationsHoldTheFunctions|TestGeneratedQueriesAreCurrent|TestTopology)$$'
	go test ./tests/contracts -run '^(TestSnapshots|TestCatalog)$$'
	go test ./tests/sql -run '^(TestSchema|TestPrivileges)$$'
	go test ./internal/app/cli -run '^TestConfigurationIsDocumented$$'

demo: build ## publish cards and watch them arrive, on a Postgres of its own
	bin/workers demo

ci: ## run everything that must hold before a change lands (about 11 min)
	.ci/run
