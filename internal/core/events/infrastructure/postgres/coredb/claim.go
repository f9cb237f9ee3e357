package coredb

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// ClaimRows is Claim, but leaves the rows to the caller, who knows how many there may be. Claim moves each of them five
// times while its slice grows.
func (q *Queries) ClaimRows(ctx context.Context, arg ClaimParams) (pgx.Rows, error) {
	return q.db.Query(ctx, claim, arg.Generation, arg.EventType, arg.RowLimit, arg.Watermark, arg.Worker, arg.Crashed,
		arg.KeptBy, arg.Probe)
}
