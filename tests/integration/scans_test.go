package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events"
	worlds "spectral/internal/worlds/contracts/events"
	"spectral/internal/worlds/domain"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

const indexer = "worlds.scan_completed_indexer"

func newFindings(t testing.TB, of ...domain.Finding) domain.Findings {
	t.Helper()
	f, err := domain.NewFindings(of...)
	must(t, err)
	return f
}

func (b *bundle) scan(workspace uuid.NullUUID, subject string) uuid.UUID {
	b.Helper()
	id, err := app.NewManageScans(b.uow).Start(b.ctx, workspace, subject)
	must(b.T, err)
	return id
}

func (b *bundle) completeScan(workspace uuid.NullUUID, id uuid.UUID, found domain.Findings) bool {
	b.Helper()
	completed, err := app.NewManageScans(b.uow).Complete(b.ctx, workspace, id, found)
	must(b.T, err)
	return completed
}

func (b *bundle) wantFound(workspace uuid.NullUUID, kind string, want ...string) {
	b.Helper()
	var got []string
	must(b.T, b.uow.Do(b.ctx, events.Worlds, workspace, func(tx events.Tx, _ events.PublisherFor) error {
		found, err := worldspg.NewScanIndex(tx).Search(b.ctx, workspace, kind, 10)
		for _, f := range found {
			got = append(got, fmt.Sprintf("%d in %s of %d %v", f.Occurrences, f.Subject, f.Total, f.Kinds))
		}
		return err
	}))
	if !slices.Equal(got, want) {
		b.Fatalf("the search for %s returns\n%q, want\n%q", kind, got, want)
	}
}

func aCompletedScanIsIndexed(b *bundle, l *testWorker) {
	workspace := newWorkspace()
	id := b.scan(workspace, "card:harbour")
	if got := b.rowsOf("core.outbox"); got != "" {
		b.Fatalf("starting a scan published %s", got)
	}
	if !b.completeScan(workspace, id,
		newFindings(b.T, domain.Finding{Kind: "stale", Occurrences: 3},
			domain.Finding{Kind: "broken_link", Occurrences: 2})) {
		b.Fatal("the scan was not completed")
	}
	l.awaitDelivered(1)

	var e events.Envelope
	must(b.T, b.pool.QueryRow(b.ctx, "select id, target, idempotency_key, payload from core.outbox").Scan(&e.EventID,
		&e.Target, &e.IdempotencyKey, &e.Payload))
	b.wantRow(e.EventID, "delivered", 1)
	if got := b.handledBy(e.IdempotencyKey); !slices.Equal(got, []string{indexer}) || e.Target != events.Worlds {
		b.Fatalf("handled by %v, with the target %q", got, e.Target)
	}
	payload, err := events.Decode[worlds.ScanCompleted](e)
	must(b.T, err)
	if !one[bool](b, `select (workspace_id, scan_id, subject, started_at, finished_at, findings) =
		($1, $2, 'card:harbour', $3, $4, $5::jsonb -> 'findings') from worlds.scans`,
		workspace, id, payload.StartedAt, payload.FinishedAt, e.Payload) {
		b.Fatalf("the scan is %s, the event says %s", b.rowsOf("worlds.scans"), e.Payload)
	}
	if !one[bool](b, `select (workspace_id, subject, scan_id, finished_at, finding_kinds, finding_count) =
		($1, 'card:harbour', $2, $3, array['broken_link', 'stale'], 5) from worlds.scan_index`,
		workspace, id, payload.FinishedAt) {
		b.Fatalf("indexed %s", b.rowsOf("worlds.scan_index", "worlds.scan_index_findings"))
	}
	b.wantFound(workspace, "broken_link", "2 in card:harbour of 5 [broken_link stale]")
	b.wantFound(workspace, "stale", "3 in card:harbour of 5 [broken_link stale]")
	b.wantFound(workspace, "typo")
	b.wantFound(uuid.NullUUID{}, "stale")
}

func aScanIsCompletedOnce(b *bundle, _ *testWorker) {
	workspace := newWorkspace()
	id, found := b.scan(workspace, "card:harbour"), newFindings(b.T, domain.Finding{Kind: "stale", Occurrences: 1})
	n := countOf(b.T, 4, func() (bool, error) {
		return app.NewManageScans(b.uow).Complete(b.ctx, workspace, id, found)
	})
	if n != 1 {
		b.Fatalf("%d of 4 completed it", n)
	}
	before := b.rowsOf("worlds.scans", "core.outbox")
	if _, err := app.NewManageScans(b.uow).Complete(b.ctx, newWorkspace(), id, found); !errors.Is(err, domain.ErrNoScan) {
		b.Errorf("completing a scan of another workspace: %v", err)
	}
	after := b.rowsOf("worlds.scans", "core.outbox")
	if after != before || one[int](b, "select count(*)::int from core.outbox") != 1 {
		b.Fatalf("before\n%s\nafter\n%s", before, after)
	}
}

// scanPayload is a completed scan as a SQL producer publishes it.
type scanPayload struct {
	ScanID     uuid.UUID        `json:"scan_id"`
	Subject    string           `json:"subject"`
	FinishedAt time.Time        `json:"finished_at"`
	Findings   []findingPayload `json:"findings"`
}

type findingPayload struct {
	Kind        string `json:"kind"`
	Occurrences int    `json:"occurrences"`
	Unknown     bool   `json:"unknown"`
}

func (b *bundle) publishScans(workspace uuid.NullUUID, scans ...scanPayload) {
	b.Helper()
	for _, s := range scans {
		if s.Findings == nil {
			s.Findings = []findingPayload{}
		}
		payload, err := json.Marshal(s)
		must(b.T, err)
		b.exec(`select core.outbox_publish('worlds.scan.completed', 'worlds',
			$1::jsonb || '{"started_at": "2026-01-01T00:00:00Z"}', p_target => 'worlds', p_workspace_id => $2)`,
			payload, workspace)
	}
}

// Four scans of one subject are handled in two orders, each with one scan twice. Two scans finished at the same time.
func anEarlierScanNeverOverwritesALaterOne(b *bundle, l *testWorker) {
	id := func(n int) uuid.UUID { return uuid.MustParse(fmt.Sprintf("5a3c7a52-8f0e-4d1b-9a51-00000000000%d", n)) }
	scans := []scanPayload{
		{id(9), "card:harbour", atMinute(1),
			[]findingPayload{{Kind: "typo", Occurrences: 9}, {Kind: "stale", Occurrences: 1}}},
		{id(1), "card:harbour", atMinute(2),
			[]findingPayload{{Kind: "stale", Occurrences: 2}, {Kind: "gap", Occurrences: 2}}},
		{id(2), "card:harbour", atMinute(3),
			[]findingPayload{{Kind: "gap", Occurrences: 3}, {Kind: "broken_link", Occurrences: 1}}},
		{id(3), "card:harbour", atMinute(3), []findingPayload{{Kind: "gap", Occurrences: 4}}},
	}
	for _, order := range []string{"01230", "32101"} {
		workspace := newWorkspace()
		for _, n := range order {
			b.publishScans(workspace, scans[n-'0'])
			l.awaitDelivered(1)
		}
		b.wantFound(workspace, "gap", "4 in card:harbour of 4 [gap]")
		for _, kind := range []string{"stale", "typo", "broken_link"} {
			b.wantFound(workspace, kind) // found by earlier scans only
		}
		if got := one[string](b, `select string_agg(concat_ws(' ', kind, occurrences, right(scan_id::text, 1)), ', ' order
			by kind)
			from worlds.scan_index_findings where workspace_id = $1`,
			workspace); got != "broken_link 1 2, gap 4 3, stale 2 1, typo 9 9" {
			b.Fatalf("in the order %v the findings are %s", order, got)
		}
	}
}
