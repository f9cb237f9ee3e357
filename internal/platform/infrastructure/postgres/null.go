package postgres

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// What is empty or zero in Go is null in SQL.

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func textOrNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func timeOrNull(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}
