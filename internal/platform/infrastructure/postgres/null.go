package postgres

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// These functions map empty and zero values in Go to null in SQL.

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
