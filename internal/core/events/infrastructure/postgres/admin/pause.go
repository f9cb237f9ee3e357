package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// Pause is an event type that nobody claims in a generation.
type Pause struct {
	EventType  string            `json:"event_type"`
	Generation events.Generation `json:"generation"`
	PausedAt   time.Time         `json:"paused_at"`
	PausedBy   string            `json:"paused_by"`
	Reason     *string           `json:"reason"`
}

// Pauses are all that there are, by generation and type.
func (a *Admin) Pauses(ctx context.Context) ([]Pause, error) {
	var all []Pause
	if err := a.inTx(ctx, func(tx pgx.Tx) (err error) {
		all, err = pauses(ctx, tx)
		return err
	}); err != nil {
		return nil, fmt.Errorf("list pauses: %w", err)
	}
	return all, nil
}

func pauses(ctx context.Context, tx pgx.Tx) ([]Pause, error) {
	rows, err := coredb.New(tx).PausedTypes(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Pause, len(rows))
	for i, r := range rows {
		all[i] = Pause{EventType: r.EventType, Generation: events.Generation(r.Generation), PausedAt: r.PausedAt.UTC(), PausedBy: r.PausedBy, Reason: r.Reason}
	}
	return all, nil
}

// Pause stops claims of an event type in a generation. Publishing goes on, and what is in hand is finished.
func (a *Admin) Pause(ctx context.Context, eventType string, generation events.Generation, by, reason string) error {
	err := a.inTx(ctx, func(tx pgx.Tx) error {
		return coredb.New(tx).PauseType(ctx, coredb.PauseTypeParams{EventType: eventType, Generation: int64(generation), ByWhom: by, Reason: reason})
	})
	if err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return nil
}

// Resume ends a pause, and wakes the workers.
func (a *Admin) Resume(ctx context.Context, eventType string, generation events.Generation, by string) error {
	err := a.inTx(ctx, func(tx pgx.Tx) error {
		return coredb.New(tx).ResumeType(ctx, coredb.ResumeTypeParams{EventType: eventType, Generation: int64(generation), ByWhom: by})
	})
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	return nil
}
