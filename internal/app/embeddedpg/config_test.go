package embeddedpg

import (
	"slices"
	"testing"
)

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config Config
		want   string // part of the error, "" = valid
	}{
		"zero":               {Config{}, ""},
		"extension setting":  {Config{Settings: map[string]string{"auto_explain.log_analyze": "on", "jit": "off"}}, ""},
		"ephemeral with dir": {Config{Ephemeral: true, Dir: "/x"}, "chooses its own folder"},
		"own setting":        {Config{Settings: map[string]string{"port": "1"}}, "port is chosen by the program"},
		"not a name":         {Config{Settings: map[string]string{"a=b -c x": "1"}}, "is not the name of a setting"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tc.config.Validate()
			if tc.want == "" {
				check(t, err)
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			mustContain(t, err.Error(), tc.want)
			if _, err := Start(deadline(t), tc.config); err == nil {
				t.Error("Start accepted it")
			}
		})
	}
}

func TestSettingsOfTheCallerWin(t *testing.T) {
	t.Parallel()
	args := Config{Settings: map[string]string{"max_connections": "7"}}.serverArgs("/data", 1)
	if !slices.Contains(args, "max_connections=7") || slices.Contains(args, "max_connections=100") {
		t.Error(args)
	}
}
