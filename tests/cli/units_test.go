package cli_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"spectral/internal/app/cli"
)

// The unit files start commands and flags that exist, set documented variables, and give a worker enough time to stop.
func TestUnitFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../deploy/systemd/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d unit files: %v", len(files), err)
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page, readme := read("../../docs/configuration.md"), read("../../deploy/README.md")
	for _, file := range files {
		if stem, _, _ := strings.Cut(filepath.Base(file), "@"); !strings.Contains(readme, stem) {
			t.Errorf("deploy/README.md does not have %s", stem)
		}
		values := parseUnit(t, file, read(file))
		if strings.HasSuffix(file, ".timer") {
			if len(values["OnCalendar"]) != 1 {
				t.Errorf("%s: a timer without a time: %v", file, values)
			}
			continue
		}
		if len(values["ExecStart"]) != 1 || !strings.HasPrefix(values["ExecStart"][0], "/opt/spectral/%i/workers ") {
			t.Fatalf("%s starts %q", file, values["ExecStart"])
		}
		for _, setting := range values["Environment"] {
			if name, _, _ := strings.Cut(setting, "="); !strings.Contains(page, "| `"+name+"` |") {
				t.Errorf("docs/configuration.md does not have %s", name)
			}
		}
		for _, from := range values["EnvironmentFile"] {
			if !strings.Contains(readme, "`"+from+"`") {
				t.Errorf("deploy/README.md does not say what is in %s", from)
			}
		}
		// the command with its flags is parsed; nothing to connect to ends it
		command := strings.Fields(values["ExecStart"][0])[1:]
		var stdout, stderr bytes.Buffer
		code := cli.Main(context.Background(), cli.Process{
			Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
			Getenv: func(name string) string { return map[string]string{"SPECTRAL_GENERATION": "1"}[name] },
		}, command)
		if code != 2 || !strings.Contains(stderr.String(), "DATABASE_URL is not set") {
			t.Errorf("%v without a database exits with %d: %s", command, code, stderr.String())
		}
		if command[0] == "run" {
			seconds, err := strconv.Atoi(values["TimeoutStopSec"][0])
			if err != nil || seconds < 35 || values["KillMode"][0] != "mixed" {
				t.Errorf("a worker is given %s to stop (%v)", values["TimeoutStopSec"], err)
			}
		}
	}
}

var assignment = regexp.MustCompile(`^(?:\[[A-Z][a-z]+\]|([A-Z][A-Za-z]+)=(.*))?$`)

// parseUnit returns the values of the keys of a unit file.
func parseUnit(t *testing.T, file, text string) map[string][]string {
	t.Helper()
	values := make(map[string][]string)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if pair := assignment.FindStringSubmatch(line); pair != nil {
			values[pair[1]] = append(values[pair[1]], pair[2])
		} else if !strings.HasPrefix(line, "#") {
			t.Errorf("%s: a line that systemd does not understand: %q", file, line)
		}
	}
	return values
}
