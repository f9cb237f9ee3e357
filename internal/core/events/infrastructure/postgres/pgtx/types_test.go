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
		direct bool // not by the driver
	}{
		{pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, []uuid.UUID{id, uuid.Nil, id}, true},
		{pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, []uuid.UUID{}, true},
		{pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, []uuid.UUID(nil), true},
		{pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, named{id}, false},
		{pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, []string{id.String()}, false},
		{pgtype.UUIDArrayOID, pgtype.TextFormatCode, []uuid.UUID{id}, false},
		{pgtype.TextArrayOID, pgtype.BinaryFormatCode, []string{"", "a", "größer", `{"quoted", NULL}`}, true},
		{pgtype.TextArrayOID, pgtype.BinaryFormatCode, []string{}, true},
		{pgtype.TextArrayOID, pgtype.TextFormatCode, []string{"a,b"}, false},
		{pgtype.TextArrayOID, pgtype.BinaryFormatCode, []uuid.UUID{id}, false},
	} {
		_, direct := ours.PlanEncode(c.oid, c.format, c.value).(encodeArray)
		if direct != c.direct {
			t.Errorf("%T %v: encoded by the driver: %t", c.value, c.value, !direct)
		}
		want, wantErr := plain.Encode(c.oid, c.format, c.value, []byte("before"))
		got, err := ours.Encode(c.oid, c.format, c.value, []byte("before"))
		if !bytes.Equal(got, want) || (got == nil) != (want == nil) || (err == nil) != (wantErr == nil) {
			t.Errorf("%T %v: %q, error %v, instead of %q, error %v", c.value, c.value, got, err, want, wantErr)
		}
	}
}
