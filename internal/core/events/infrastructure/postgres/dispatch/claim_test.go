package dispatch

import "testing"

func TestPayloadField(t *testing.T) {
	t.Parallel()
	for document, want := range map[string]string{
		`{"n": 1, "key": 5}`: "5", `{"key": {"a": [1]}, "n": 1}`: `{"a": [1]}`, `{"n": {"key": 1}, "key": "x"}`: `"x"`,
		`{"k\u0065y": 7}`: "7", `{"n": 1}`: "", `{}`: "", `{"key": `: "", `[1]`: "", `["key", 1]`: "", `x`: "", ``: "",
	} {
		if got := string(payloadField([]byte(document), "key")); got != want {
			t.Errorf("%s: %s", document, got)
		}
	}
}
