package events

import (
	"context"

	"github.com/google/uuid"
)

// DeliveryInfo says of a handler's call which event it is about, and how often that was tried.
type DeliveryInfo struct {
	EventID uuid.UUID
	// Attempt counts the dispatches of the event since it was published or replayed, from 1.
	Attempt int
	// Replay says that an operator has replayed the event. Handlers that have handled it before do not run again.
	Replay bool
}

type deliveryKey struct{}

// Delivery returns what a handler's context says of its call. It is the zero DeliveryInfo in HandleBatch of several
// events, and outside handlers.
func Delivery(ctx context.Context) DeliveryInfo {
	d, _ := ctx.Value(deliveryKey{}).(DeliveryInfo)
	return d
}

// WithDelivery returns ctx for the call of a handler. The events that it publishes with that context have the event of
// d as their cause.
func WithDelivery(ctx context.Context, d DeliveryInfo) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// CausedBy returns ctx for publishing what e has caused. Only HandleBatch needs it, which is given several events.
func CausedBy(ctx context.Context, e Envelope) context.Context {
	d := Delivery(ctx)
	d.EventID = e.EventID
	return WithDelivery(ctx, d)
}
