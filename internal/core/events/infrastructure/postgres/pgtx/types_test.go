package pgtx

import (
	"bytes"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

func TestArraysAreSentAsByTheDriver(t *testing.T) {
	t.Parallel()
	ours, plain := pgtype.NewMap(), pgtype.NewMap()
	registerTypes(ours)
	type named []uuid.UUID
	id := uuid.MustParse("0193c0de-0000-7000-8000-00000000abcd")
	for _, c := range []struct {
		oid    uint32
		format int16
		value  any
	}{
		{pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, []uuid.UUID{id, uuid.Nil, id}},
		{pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, []uuid.UUID{}},
		{pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, []uuid.UUID(nil)},
		{pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, named{id}},
		{pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, []string{id.String()}},
		{pgtype.UUIDArrayOID, pgtype.TextFormatCode, []uuid.UUID{id}},
		{pgtype.TextArrayOID, pgtype.BinaryFormatCode, []string{"", "a", "größer", `{"quoted", NULL}`}},
		{pgtype.TextArrayOID, pgtype.BinaryFormatCode, []string{}},
		{pgtype.TextArrayOID, pgtype.TextFormatCode, []string{"a,b"}},
		{pgtype.TextArrayOID, pgtype.BinaryFormatCode, []uuid.UUID{id}},
	} {
		want, wantErr := plain.Encode(c.oid, c.format, c.value, []byte("before"))
		got, err := ours.Encode(c.oid, c.format, c.value, []byte("before"))
		if !bytes.Equal(got, want) || (got == nil) != (want == nil) || (err == nil) != (wantErr == nil) {
			t.Errorf("%T %v: %q, error %v, instead of %q, error %v", c.value, c.value, got, err, want, wantErr)
		}
	}
}
