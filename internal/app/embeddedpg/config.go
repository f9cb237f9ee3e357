package embeddedpg

import (
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

// Config of a server; the zero value is the demo's server.
type Config struct {
	// Dir is the folder that holds the cluster. Empty means spectral/postgres in the user's cache folder, or, when
	// that cannot be used (no HOME; root, whose home PostgreSQL's user cannot enter), in /var/cache/spectral/<id> or
	// the temporary folder. A Dir that PostgreSQL's user cannot enter is an error.
	Dir string
	// Fresh deletes the cluster first.
	Fresh bool
	// Ephemeral is for tests: a new temporary folder, removed by Stop, and a server that does not protect its data
	// against a crash. Not together with Dir.
	Ephemeral bool
	// NoSync makes a server that does not protect its data against a crash, with small log files. Ephemeral includes it.
	NoSync bool
	// From is the Dir of a server that was stopped: where there is no cluster yet, it is copied from there.
	From string
	// Settings are PostgreSQL settings by name. They win over this package's choices, except for those that say
	// where the server is found (port, addresses, files), which are refused.
	Settings map[string]string
	// BinDir is the folder of PostgreSQL's programs, normally the value of SPECTRAL_POSTGRES_BIN. Empty means the
	// newest installed version, or a download when none is suitable.
	BinDir string
	// Log may be nil. The password is never logged.
	Log *slog.Logger
}

var settingName = regexp.MustCompile(`^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?$`)

// ownSettings would take the server away from where this package looks for it.
var ownSettings = []string{
	"config_file", "data_directory", "external_pid_file", "hba_file", "ident_file", "listen_addresses",
	"log_destination", "logging_collector", "port", "unix_socket_directories",
}

// Validate reports conflicting or unusable fields. Start calls it.
func (c Config) Validate() error {
	if c.Ephemeral && c.Dir != "" {
		return fmt.Errorf("embedded PostgreSQL: an ephemeral server chooses its own folder, so Dir (%s) must be empty", c.Dir)
	}
	for name := range c.Settings {
		if !settingName.MatchString(name) {
			return fmt.Errorf("embedded PostgreSQL: %q is not the name of a setting", name)
		}
		if slices.Contains(ownSettings, name) {
			return fmt.Errorf("embedded PostgreSQL: the setting %s is chosen by the program", name)
		}
	}
	return nil
}

// serverArgs are the arguments of the postgres program. Data comes first: isPostmaster looks for it.
func (c Config) serverArgs(data string, port int) []string {
	settings := map[string]string{"max_connections": "100"}
	if c.Ephemeral || c.NoSync {
		settings = map[string]string{
			"max_connections":    "200",
			"fsync":              "off",
			"synchronous_commit": "off",
			"full_page_writes":   "off",
		}
	}
	maps.Copy(settings, c.Settings)
	settings["listen_addresses"] = "127.0.0.1"
	settings["port"] = strconv.Itoa(port)
	settings["unix_socket_directories"] = "" // the path of a socket is limited to 107 bytes, a folder's is not
	settings["logging_collector"] = "off"    // the log is the output, so that an early exit can be explained

	args := []string{"-D", data}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}
