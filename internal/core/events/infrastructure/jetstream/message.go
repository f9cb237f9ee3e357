package jetstream

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
)

// The headers of a message. Those that begin with ce- are the attributes of a CloudEvent; the ones that CloudEvents
// does not define are extensions. The body is the payload.
const (
	headerSpecVersion    = "ce-specversion" // always 1.0
	headerID             = "ce-id"          // the event id, which the broker deduplicates by, too
	headerType           = "ce-type"
	headerSource         = "ce-source" // / and the context that published it
	headerTime           = "ce-time"   // occurred_at
	headerContentType    = "ce-datacontenttype"
	headerTraceParent    = "ce-traceparent"
	headerVersion        = "ce-eventversion"
	headerTarget         = "ce-target"
	headerWorkspace      = "ce-workspaceid"
	headerIdempotencyKey = "ce-idempotencykey"
	headerContentClass   = "ce-contentclass"
)

// toMessage returns an event as a message. Headers of what it does not have are left out.
func toMessage(subject string, row *dispatch.Row) *nats.Msg {
	e := &row.Envelope
	id := e.EventID.String()
	header := nats.Header{
		natsjs.MsgIDHeader: {id}, headerSpecVersion: {"1.0"}, headerID: {id}, headerType: {e.EventType},
		headerSource: {"/" + string(e.Source)}, headerTime: {e.OccurredAt.UTC().Format(time.RFC3339Nano)},
		headerContentType: {"application/json"}, headerVersion: {strconv.Itoa(e.EventVersion)},
		headerIdempotencyKey: {percentEncode(e.IdempotencyKey)}, headerContentClass: {row.ContentClass},
	}
	if e.Target != "" {
		header[headerTarget] = []string{string(e.Target)}
	}
	if e.WorkspaceID.Valid {
		header[headerWorkspace] = []string{e.WorkspaceID.UUID.String()}
	}
	if e.TraceContext != "" {
		header[headerTraceParent] = []string{percentEncode(e.TraceContext)}
	}
	return &nats.Msg{Subject: subject, Header: header, Data: e.Payload}
}

// fromMessage returns the event of a message.
func fromMessage(header nats.Header, body []byte) (row dispatch.Row, err error) {
	text := func(name string) string {
		value, unescapeErr := url.PathUnescape(header.Get(name))
		if unescapeErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, unescapeErr))
		}
		return value
	}
	e := &row.Envelope
	e.EventType, e.Source = text(headerType), events.Scope(strings.TrimPrefix(text(headerSource), "/"))
	e.Target, e.IdempotencyKey = events.Scope(text(headerTarget)), text(headerIdempotencyKey)
	e.TraceContext, e.Payload, row.ContentClass = text(headerTraceParent), body, text(headerContentClass)
	id, idErr := uuid.Parse(text(headerID))
	version, versionErr := strconv.Atoi(text(headerVersion))
	at, timeErr := time.Parse(time.RFC3339Nano, text(headerTime))
	var workspaceErr error
	if workspace := text(headerWorkspace); workspace != "" {
		e.WorkspaceID.UUID, workspaceErr = uuid.Parse(workspace)
		e.WorkspaceID.Valid = true
	}
	e.EventID, e.EventVersion, e.OccurredAt, row.Relayed = id, version, at, true
	if err = errors.Join(err, idErr, versionErr, timeErr, workspaceErr); err == nil && e.IdempotencyKey == "" {
		err = fmt.Errorf("%s is missing", headerIdempotencyKey)
	}
	return row, err
}

// percentEncode encodes what a header may not have, as the bindings of CloudEvents to HTTP and NATS say: everything but
// printable ASCII, and space, quote and percent.
func percentEncode(text string) string {
	var out strings.Builder
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '%' {
			fmt.Fprintf(&out, "%%%02X", c)
		} else {
			out.WriteByte(c)
		}
	}
	return out.String()
}
