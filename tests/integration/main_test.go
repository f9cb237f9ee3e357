package integration_test

import (
	"testing"

	"spectral/tests/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
