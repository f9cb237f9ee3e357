package postgres

import "github.com/google/uuid"

// Keys of log entries (seed: observability). Messages are static. The text of a handler's error,
// which may quote a payload, stays in the row's last_error and is not logged; that of the adapter's
// own statements is.
const (
	logEventID     = "event_id"
	logEventType   = "event_type"
	logSource      = "source"
	logTarget      = "target"
	logWorkspaceID = "workspace_id"
	logHandler     = "handler_name"
	logAttempts    = "attempts"
	logDuration    = "duration_ms"
	logResult      = "status_result"
	logErrorClass  = "error_class"
	logStack       = "stack"
	logChannels    = "channels"
	logReason      = "reason"
	logState       = "state"
	logDelay       = "delay_ms"
	logRows        = "rows"
	logCrashes     = "crashes"
	logGeneration  = "event_generation"
	logLeft        = "rows_left"
	logDeadline    = "deadline"
	logSuccessor   = "successor"
	logSee         = "see"

	logDue            = "due"
	logScheduled      = "scheduled"
	logScheduledUntil = "scheduled_until"
	logInFlight       = "in_flight"
	logPaused         = "paused_types"
	logStranded       = "unhandled"
)

// showsError is the command that shows the error of an event, which is not logged.
func showsError(event uuid.UUID) string { return "workers events show " + event.String() }

func workspaceText(w uuid.NullUUID) string {
	if !w.Valid {
		return ""
	}
	return w.UUID.String()
}
