package integration_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spectral/internal/core/events/eventstest"
	"spectral/tests/pgtest"
)

// goBlocks returns the blocks of Go in a page that name no file: those that do are of tests/contracts.
func goBlocks(t *testing.T, page string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	must(t, err)
	for _, b := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, b[1])
	}
	if len(blocks) == 0 {
		t.Fatalf("docs/%s shows no Go", page)
	}
	return blocks
}

func TestPagesShowTheseTests(t *testing.T) {
	t.Parallel()
	for page, file := range map[string]string{
		"testing.md": "eventstest_test.go", "adding-an-event.md": "batch_test.go",
	} {
		source, err := os.ReadFile(file)
		must(t, err)
		for _, code := range goBlocks(t, page) {
			if !strings.Contains(string(source), code) {
				t.Errorf("docs/%s has a block that is not in tests/integration/%s: copy it from there:\n%s", page, file, code)
			}
		}
	}
}

// The program of docs/producers.md runs as it stands there, as a login of worlds.
func TestProducersPageShowsAWholeProgram(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	program := filepath.Join(t.TempDir(), "main.go")
	must(t, os.WriteFile(program, []byte(goBlocks(t, "producers.md")[0]), 0o600))
	root, err := filepath.Abs("../..")
	must(t, err)
	// it is in the module, because internal packages cannot be imported from elsewhere
	overlay, err := json.Marshal(map[string]any{
		"Replace": map[string]string{filepath.Join(root, "cmd/produce/main.go"): program},
	})
	must(t, err)
	replaced := filepath.Join(t.TempDir(), "overlay.json")
	must(t, os.WriteFile(replaced, overlay, 0o600))
	run := exec.CommandContext(t.Context(), "go", "run", "-overlay", replaced, "./cmd/produce")
	run.Dir = root
	run.Env = append(os.Environ(), "DATABASE_URL="+pgtest.Login(t, url, "spectral_worlds"), "SPECTRAL_GENERATION=1")
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	outbox := eventstest.Outbox(pgtest.Pool(t, url))
	eventstest.RequirePublished(t, outbox, "worlds.world_model_card.published", func(p CardTitle) bool {
		return p == CardTitle{CardID: "quay", Version: 1, Title: "The Old Quay"}
	})
}
