# `make` lists the targets. Times are for 2 cores with warm module and build caches.

# The tools have a separate module. Built without cgo they need no C compiler, and less time.
tool := CGO_ENABLED=0 go tool -modfile=tools/go.mod
tags := heavy,sqlc

.DEFAULT_GOAL := help
.PHONY: help build event quick test test-all soak race bench lint fmt generate verify-generated demo ci

# Tests that write files with -update, by what they write: the topology, the catalog, the golden schema, the table of settings.
goldens := ./tests/architecture ./tests/contracts ./tests/sql ./internal/app/cli -run \
	'^(TestTopology|TestSnapshots|TestCatalog|TestSchema|TestPrivileges|TestConfigurationIsDocumented)$$'

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## build bin/workers (20 s from nothing)
	go build -o bin/ ./cmd/...

event: ## write the files of a new event: docs/adding-an-event.md (1 s)
	@go run ./internal/dev event '$(NAME)' '$(TO)' '$(FIELDS)'

quick: ## check what changes while working, without the slow suites (5 to 40 s)
	go vet ./...
	go test ./internal/core/events/... ./internal/platform/... ./internal/worlds/... ./internal/app ./internal/dev \
		./tests/architecture ./tests/contracts

test: ## run the tests, which start their own Postgres (3 to 5 min)
	go test ./...

test-all: ## run the heavy tests too (about 9 min)
	go test -tags=$(tags) -timeout=30m ./...

soak: ## run all tests with the long storms and full models (each package may take an hour)
	go test -tags=$(tags),soak -timeout=60m ./...

race: ## run the adapters and the conformance suite under the race detector (30 s)
	go test -race ./internal/core/... ./tests/conformance

bench: ## measure the speed beside peers, docs/performance.md (3 to 5 min; make it quiet before)
	go -C tests/bench run .

lint: ## run golangci-lint (10 s; 1 min the first time)
	$(tool) golangci-lint run

fmt: ## format the Go code (10 s)
	$(tool) golangci-lint fmt

# The functions come first, by a separate program: the tests do not compile before sqlc has written the queries.
generate: ## write the files that follow from the code and db/ (15 s)
	go run ./internal/dev functions
	$(tool) sqlc generate
	go test -vet=off $(goldens) -update

verify-generated: ## fail if generate would change anything (20 s)
	go test ./tests/architecture -tags=sqlc -run '^(TestMigrationsHoldTheFunctions|TestGeneratedQueriesAreCurrent)$$'
	go test $(goldens)

demo: build ## publish cards and watch them arrive, on its own Postgres
	bin/workers demo

ci: ## run everything that must hold before a change lands (12 to 15 min)
	.ci/run
