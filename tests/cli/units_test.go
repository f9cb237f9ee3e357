package cli_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../deploy/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sections, values := parseUnit(t, string(text))
			if stem, _, _ := strings.Cut(filepath.Base(file), "@"); !strings.Contains(string(readme), stem) {
				t.Errorf("deploy/README.md does not have %s", stem)
			}
			if strings.HasSuffix(file, ".timer") {
				if !slices.Contains(sections, "Timer") || len(values["OnCalendar"]) != 1 {
					t.Errorf("a timer without a time: %v", values)
				}
				return
			}
			if !slices.Contains(sections, "Service") || len(values["ExecStart"]) != 1 {
				t.Fatalf("a service that starts %q", values["ExecStart"])
			}
			command := strings.Fields(values["ExecStart"][0])
			if command[0] != "/opt/spectral/%i/workers" {
				t.Errorf("it starts %s", command[0])
			}
			for _, setting := range values["Environment"] {
				if name, _, _ := strings.Cut(setting, "="); !bytes.Contains(page, []byte("| `"+name+"` |")) {
					t.Errorf("docs/configuration.md does not have %s", name)
				}
			}
			for _, from := range values["EnvironmentFile"] {
				if !bytes.Contains(readme, []byte("`"+from+"`")) {
					t.Errorf("deploy/README.md does not say what is in %s", from)
				}
			}
			// the command with its flags is parsed; nothing to connect to ends it
			var stdout, stderr bytes.Buffer
			code := cli.Main(context.Background(), cli.Process{
				Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
				Getenv: func(name string) string { return map[string]string{"SPECTRAL_GENERATION": "1"}[name] },
			}, command[1:])
			if code != 2 || !strings.Contains(stderr.String(), "DATABASE_URL is not set") {
				t.Errorf("%v without a database exits with %d: %s", command[1:], code, stderr.String())
			}
			if slices.Contains(command, "run") {
				seconds, err := strconv.Atoi(values["TimeoutStopSec"][0])
				if err != nil || seconds < 35 || values["KillMode"][0] != "mixed" {
					t.Errorf("a worker is given %s to stop (%v)", values["TimeoutStopSec"], err)
				}
			}
		})
	}
}

var assignment = regexp.MustCompile(`^([A-Z][A-Za-z]+)=(.*)$`)

// parseUnit returns the sections of a unit file and the values of its keys.
func parseUnit(t *testing.T, text string) (sections []string, values map[string][]string) {
	t.Helper()
	values = make(map[string][]string)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch pair := assignment.FindStringSubmatch(line); {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			sections = append(sections, strings.Trim(line, "[]"))
		case pair != nil && len(sections) > 0:
			values[pair[1]] = append(values[pair[1]], pair[2])
		default:
			t.Errorf("a line that systemd does not understand: %q", line)
		}
	}
	return sections, values
}
