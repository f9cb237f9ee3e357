package main

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// watermillSQL is Watermill with its SQL Pub/Sub. The doc comment of SubscribeBatchSize says that a small one is slow
// where many messages are consumed. Nothing notifies a subscriber, so it polls every 10 ms. Of the subscribers of a
// consumer group one works at a time.
type watermillSQL struct{}

const topic = "bench"

func (watermillSQL) Info() info {
	return info{"watermill", "watermill", "watermill_bench, watermill_offsets_bench",
		`select exists (select from watermill_bench as m where m."offset" >
			coalesce((select max(o.offset_acked) from watermill_offsets_bench as o), 0))`}
}

var (
	watermillSchema  = watermillsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1000}
	watermillOffsets = watermillsql.DefaultPostgreSQLOffsetsAdapter{}
)

func (watermillSQL) Prepare(_ context.Context, d *database) error {
	subscriber, err := watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(d.pool), watermillsql.SubscriberConfig{
		SchemaAdapter: watermillSchema, OffsetsAdapter: watermillOffsets}, nil)
	if err != nil {
		return err
	}
	defer func() { _ = subscriber.Close() }()
	return subscriber.SubscribeInitialize(topic)
}

func (watermillSQL) Publisher(_ context.Context, _ *database, pool *pgxpool.Pool) (publishFunc, error) {
	return func(ctx context.Context, batch []event) error {
		messages := make([]*message.Message, len(batch))
		for i, e := range batch {
			payload, err := json.Marshal(e)
			if err != nil {
				return err
			}
			messages[i] = message.NewMessageWithContext(ctx, watermill.NewUUID(), payload)
		}
		return inTx(ctx, pool, func(tx pgx.Tx) error {
			publisher, err := watermillsql.NewPublisher(watermillsql.TxFromPgx(tx),
				watermillsql.PublisherConfig{SchemaAdapter: watermillSchema}, nil)
			if err != nil {
				return err
			}
			return publisher.Publish(topic, messages...)
		})
	}, nil
}

func (watermillSQL) Fill(ctx context.Context, d *database, b backlog) error {
	_, err := d.pool.Exec(ctx, `with r as materialized (`+fillRows+`)
		insert into watermill_bench (uuid, payload, metadata, transaction_id)
		select id::text, payload, '{}', pg_current_xact_id() from r`, b.args()...)
	return err
}

func (watermillSQL) Work(ctx context.Context, d *database, j job) (func() error, error) {
	pool, err := openPool(ctx, d.worker, 4)
	if err != nil {
		return nil, err
	}
	subscriber, err := watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(pool), watermillsql.SubscriberConfig{
		SchemaAdapter: watermillSchema, OffsetsAdapter: watermillOffsets, PollInterval: 10 * time.Millisecond}, nil)
	if err != nil {
		return nil, err
	}
	messages, err := subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	running.Go(func() {
		for m := range messages {
			if watermillHandle(m, j) != nil {
				m.Nack()
				continue
			}
			m.Ack()
		}
	})
	return func() error {
		err := subscriber.Close()
		running.Wait()
		pool.Close()
		return err
	}, nil
}

// watermillHandle writes the effect in the subscriber's transaction.
func watermillHandle(m *message.Message, j job) error {
	var e event
	if err := json.Unmarshal(m.Payload, &e); err != nil {
		return err
	}
	if j.effect != noEffect {
		tx, _ := watermillsql.TxFromContext(m.Context())
		if _, err := tx.ExecContext(m.Context(), writeEffect, e.Key); err != nil {
			return err
		}
	}
	return j.handle(e)
}
