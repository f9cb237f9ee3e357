package pgtx

import (
	"encoding/binary"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	pgxuuid "github.com/vgarvardt/pgx-google-uuid/v5"
)

// registerTypes makes the driver send ids, and arrays of ids and texts, as bytes. By itself it makes a text of each id,
// and one to four small objects of each element: a third of all objects that a drain made.
func registerTypes(types *pgtype.Map) {
	pgxuuid.Register(types)
	for _, oid := range []uint32{pgtype.UUIDArrayOID, pgtype.TextArrayOID} {
		if t, ok := types.TypeForOID(oid); ok {
			types.RegisterType(&pgtype.Type{Name: t.Name, OID: oid, Codec: arrayCodec{t.Codec.(*pgtype.ArrayCodec)}})
		}
	}
}

// arrayCodec is the driver's, but for a []uuid.UUID that is sent as uuid[] and a []string that is sent as text[].
type arrayCodec struct{ *pgtype.ArrayCodec }

// PlanEncode implements [pgtype.Codec].
func (c arrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	_, ids := value.([]uuid.UUID)
	_, texts := value.([]string)
	if format == pgtype.BinaryFormatCode && (ids && oid == pgtype.UUIDArrayOID || texts && oid == pgtype.TextArrayOID) {
		return encodeArray{}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

type encodeArray struct{}

// Encode implements [pgtype.EncodePlan]. The header says: one dimension, no nulls, counted from 1.
func (encodeArray) Encode(value any, buf []byte) ([]byte, error) {
	order := binary.BigEndian
	header := func(element uint32, length, bytes int) {
		buf = slices.Grow(buf, (length+1)*bytes)
		for _, n := range []uint32{1, 0, element, uint32(length), 1} {
			buf = order.AppendUint32(buf, n)
		}
	}
	switch all := value.(type) {
	case []uuid.UUID:
		header(pgtype.UUIDOID, len(all), 20)
		for _, id := range all {
			buf = append(order.AppendUint32(buf, uint32(len(id))), id[:]...)
		}
	case []string:
		header(pgtype.TextOID, len(all), 40) // as long as an id, which most of them are
		for _, text := range all {
			buf = append(order.AppendUint32(buf, uint32(len(text))), text...) //nolint:gosec // bounded
		}
	}
	return buf, nil
}
