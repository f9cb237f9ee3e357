//go:build soak

package integration_test

import "testing"

func TestManyBurstsOfProducersStrandNothing(t *testing.T) { strandNothing(t, 32, 10) }
