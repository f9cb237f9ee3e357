package pgtx

import "github.com/google/uuid"

// Keys of log entries. Messages are constant. The text of a handler's error may quote a payload: it is stored in the
// row's last_error and not logged. The text of an error of the adapter's own statements is logged.
const (
	LogEventID     = "event_id"
	LogEventType   = "event_type"
	LogSource      = "source"
	LogTarget      = "target"
	LogWorkspaceID = "workspace_id"
	LogHandler     = "handler_name"
	LogAttempts    = "attempts"
	LogDuration    = "duration_ms"
	LogResult      = "status_result"
	LogErrorClass  = "error_class"
	LogSQLState    = "sqlstate"
	LogRolledBack  = "batches_rolled_back"
	LogStack       = "stack"
	LogChannels    = "channels"
	LogReason      = "reason"
	LogState       = "state"
	LogDelay       = "delay_ms"
	LogRows        = "rows"
	LogCrashes     = "crashes"
	LogGeneration  = "event_generation"
	LogDeadline    = "deadline"
	LogSuccessor   = "successor"
	LogSee         = "see"
	LogPartitions  = "partitions"

	LogDue            = "due"
	LogScheduled      = "scheduled"
	LogScheduledUntil = "scheduled_until"
	LogInFlight       = "in_flight"
	LogPaused         = "paused_types"
	LogUnhandled      = "unhandled"
)

// ShowCommand returns the command that shows an event and its error.
func ShowCommand(event uuid.UUID) string { return "workers events show " + event.String() }

// WorkspaceText returns w as text, empty for none.
func WorkspaceText(w uuid.NullUUID) string {
	if !w.Valid {
		return ""
	}
	return w.UUID.String()
}

// LogError returns the attributes of an error of the adapter's own statements.
func LogError(err error) []any { return []any{LogErrorClass, ErrorClass(err), LogReason, err.Error()} }
