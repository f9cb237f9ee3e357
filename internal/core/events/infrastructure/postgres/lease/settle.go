package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// settling is one transaction that settles results.
type settling struct {
	tx       *dispatch.Tx
	consumer *dispatch.Consumer
	limit    time.Duration
	held     map[uuid.UUID]bool // the tokens whose lease holds
}

// settle writes the rows, and thereby locks them, before a completion runs, so that the holder of an expired lease
// finds out before it writes. It commits, and returns the results whose lease is lost.
func (s *settling) settle(ctx context.Context, batch []*result) (lost map[*result]bool, err error) {
	if err := s.setLimits(ctx); err != nil {
		return nil, fmt.Errorf("bound the transaction: %w", err)
	}
	if err := s.writeRows(ctx, batch); err != nil {
		return nil, err
	}
	lost = make(map[*result]bool)
	var keys dispatch.DedupKeys
	claims := false
	for i, r := range batch {
		lost[r] = !s.held[r.lease.row.Token]
		if !lost[r] && r.handler.Name != "" {
			keys.Add(r.handler, r.lease.row, i)
			claims = true
		}
	}
	if claims {
		if err := s.tx.ClaimKeys(ctx, &keys); err != nil {
			return nil, err
		}
	}
	completed, err := s.completeAll(ctx, batch, &keys)
	if err != nil {
		return nil, err
	}
	if err := s.tx.Commit(ctx); err != nil {
		if completed && pgtx.Answered(err) { // an error of a deferred constraint
			err = fmt.Errorf("%w: %w", dispatch.ErrCompletion, dispatch.ExplainTimeout(ctx, s.limit, err))
		}
		return nil, err
	}
	return lost, nil
}

// setLimits makes the server end the transaction if this process does not.
func (s *settling) setLimits(ctx context.Context) error {
	ms := max(s.limit.Milliseconds(), 2)
	return s.tx.Exec(ctx, fmt.Sprintf("set local lock_timeout = %d; set local statement_timeout = %d; set local "+
		"idle_in_transaction_session_timeout = %[2]d", ms/2, ms))
}

// writeRows writes what becomes of the rows, and sets which leases hold.
func (s *settling) writeRows(ctx context.Context, batch []*result) error {
	s.held = make(map[uuid.UUID]bool, len(batch))
	var kept, delivered []dispatch.Row
	for _, r := range batch {
		switch row := r.lease.row; r.row {
		case rowKept:
			kept = append(kept, row)
		case rowDelivered:
			delivered = append(delivered, row)
		case rowDecided:
			if err := s.writeDecision(ctx, row, r.decision); err != nil {
				return err
			}
		}
	}
	if len(kept) > 0 {
		if err := renewRows(ctx, s.tx.Queries, kept, make([]string, len(kept)), s.held); err != nil {
			return fmt.Errorf("renew leases: %w", err)
		}
		for _, row := range kept {
			if _, known := s.held[row.Token]; !known {
				return errRowLocked
			}
		}
	}
	if len(delivered) == 0 {
		return nil
	}
	ids, times := dispatch.Keys(delivered)
	tokens, err := s.tx.Queries.DeliverLeased(ctx, coredb.DeliverLeasedParams{
		Ids: ids, OccurredAts: times, Tokens: tokensOf(delivered),
	})
	if err != nil {
		return fmt.Errorf("settle as delivered: %w", err)
	}
	for _, token := range tokens {
		s.held[token] = true
	}
	for _, row := range delivered {
		if s.held[row.Token] {
			s.tx.Settled = append(s.tx.Settled, dispatch.DeliveredRow(row))
		}
	}
	return nil
}

func (s *settling) writeDecision(ctx context.Context, row dispatch.Row, d dispatch.Decision) error {
	encoded, err := d.Encoded()
	if err != nil {
		return err
	}
	e := row.Envelope
	var held bool
	if d.Failed {
		held, err = s.tx.Queries.FailLeased(ctx, coredb.FailLeasedParams{
			ID: e.EventID, OccurredAt: e.OccurredAt, Token: row.Token, LastError: d.LastError, HandlerFailures: encoded,
			Counted: d.Counted,
		})
	} else {
		held, err = s.tx.Queries.RetryLeased(ctx, coredb.RetryLeasedParams{
			ID: e.EventID, OccurredAt: e.OccurredAt, Token: row.Token, DelaySeconds: d.Delay.Seconds(), LastError: d.LastError,
			HandlerFailures: encoded, Counted: d.Counted,
		})
	}
	if err != nil {
		return fmt.Errorf("record the failure of %s: %w", e.EventID, err)
	}
	if s.held[row.Token] = held; held {
		s.tx.Settled = append(s.tx.Settled, d.Settlement(row))
	}
	return nil
}

// completeAll runs the completions whose dedup keys were free, and reports whether any ran. A key that was taken means
// that another execution was completed.
func (s *settling) completeAll(ctx context.Context, batch []*result, keys *dispatch.DedupKeys) (ran bool, err error) {
	for i, r := range batch {
		if r.completion == nil || !keys.Runs(r.handler, r.lease.row, i) {
			continue
		}
		ran = true
		if err := s.complete(ctx, r); err != nil {
			return ran, dispatch.CompletionFailed(ctx, s.tx, err)
		}
	}
	if !ran {
		return false, nil
	}
	if err := s.tx.AsWorker(ctx); err != nil {
		err = fmt.Errorf("returned nil but left the transaction unusable: %w", err)
		return ran, dispatch.CompletionFailed(ctx, s.tx, err)
	}
	return ran, nil
}

// complete runs one completion as its context's role.
func (s *settling) complete(ctx context.Context, r *result) error {
	role, err := pgtx.ContextRole(r.handler.Scope())
	if err != nil {
		return err
	}
	if err := s.tx.As(ctx, role, r.lease.row.Envelope.WorkspaceID); err != nil {
		return fmt.Errorf("act as %s: %w", role, err)
	}
	limit := min(s.limit, r.handler.CallTimeout())
	err = s.tx.WithHandlerTx(ctx, limit, func(ctx context.Context, tx events.Tx) error {
		return dispatch.ExplainTimeout(ctx, limit, r.completion(ctx, tx))
	})
	s.consumer.LogPanic(ctx, r.handler, []events.Envelope{r.lease.row.Envelope}, err)
	return err
}
