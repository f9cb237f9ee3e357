package jetstream

import "time"

// Every limit of the relay, and every time that it waits.
const (
	// ackTimeout is how long events wait for the broker's acks. Their rows are locked for so long.
	ackTimeout = 2 * time.Second
	// maxPayload is the largest payload that is sent, in bytes: a receiver has up to 1,000 messages in memory, and brokers
	// take 1 MB by default.
	maxPayload = 64 << 10
	// ackWait is how long the broker leaves a message with a receiver that has died; others say three times in it that
	// they go on.
	ackWait = 10 * time.Second
	// maxAckPending is how many messages of a handler all its receivers may have at once.
	maxAckPending = 20_000
	// duplicates is how long the broker knows the ids of messages. After that, the dedup keys alone decide.
	duplicates = 2 * time.Minute
	// maxBytes is how large a new stream may become. An operator may change it.
	maxBytes = 1 << 30
	// unused is when the broker deletes the consumer of a handler that no worker has any more: the stream keeps all that
	// it has not had.
	unused = time.Hour

	fetchWait    = 20 * time.Second // how long the broker keeps a request for messages that it does not have
	apiTimeout   = 5 * time.Second  // of requests to the broker
	writeTimeout = 2 * time.Second  // of writing to the connection
	checkPause   = 10 * time.Second // between two checks of the stream and the consumers
	retryPause   = time.Second      // after one that failed
	warnPause    = time.Minute      // between two log entries about refused events
	pingInterval = 10 * time.Second
)
