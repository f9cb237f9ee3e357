//go:build soak

package integration_test

import "testing"

func TestManyBurstsOfProducersLeaveNoEventBehind(t *testing.T) { leaveNoEventBehind(t, 32, 10) }
