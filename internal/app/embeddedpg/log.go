package embeddedpg

// Keys of log entries.
const (
	logPID     = "pid"
	logData    = "data"
	logFolder  = "folder"
	logError   = "error"
	logVersion = "version"
	logPort    = "port"
)
