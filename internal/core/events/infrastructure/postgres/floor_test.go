package postgres

import (
	"testing"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

func TestFloorRises(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Unix(1_000_000+int64(second), 0) }
	for name, c := range map[string]struct {
		measured []coredb.FloorRow
		want     time.Time
	}{
		"nobody else at work": {
			[]coredb.FloorRow{{MarkAt: at(1), MarkID: 10, LowestRunning: 10}}, at(1),
		},
		"an older transaction is at work": {
			[]coredb.FloorRow{{MarkAt: at(1), MarkID: 10, LowestRunning: 9}}, time.Time{},
		},
		"it has ended since": {
			[]coredb.FloorRow{{MarkAt: at(1), MarkID: 10, LowestRunning: 9}, {MarkAt: at(2), MarkID: 12, LowestRunning: 11}}, at(1),
		},
		"never past what is pending": {
			[]coredb.FloorRow{{MarkAt: at(5), MarkID: 10, LowestRunning: 10, Oldest: at(3)}}, at(3),
		},
		"what is scheduled for later holds nothing down": {
			[]coredb.FloorRow{{MarkAt: at(5), MarkID: 10, LowestRunning: 10, Oldest: at(9)}}, at(5),
		},
		"nothing is proven anew": {
			[]coredb.FloorRow{{MarkAt: at(5), MarkID: 10, LowestRunning: 10}, {MarkAt: at(6), MarkID: 12, LowestRunning: 11, Oldest: at(6)}}, at(5),
		},
		"a clock set back": {
			[]coredb.FloorRow{{MarkAt: at(5), MarkID: 10, LowestRunning: 10}, {MarkAt: at(4), MarkID: 11, LowestRunning: 11}}, time.Time{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var f floor
			for _, m := range c.measured {
				f.rise(f.get(), m)
			}
			if got := f.get(); !got.Equal(c.want) {
				t.Fatalf("floor at %s, want %s", got, c.want)
			}
		})
	}
}

// A row found below the floor must not be lost again to a measurement that was on its way.
func TestFloorLoweredDuringAMeasurement(t *testing.T) {
	t.Parallel()
	var f floor
	f.rise(f.get(), coredb.FloorRow{MarkAt: time.Unix(100, 0), MarkID: 1, LowestRunning: 1})
	used := f.get()
	f.lower(time.Unix(50, 0))
	f.rise(used, coredb.FloorRow{MarkAt: time.Unix(200, 0), MarkID: 2, LowestRunning: 2})
	if got := f.get(); !got.Equal(time.Unix(50, 0)) {
		t.Fatalf("floor at %s", got)
	}
	f.rise(f.get(), coredb.FloorRow{MarkAt: time.Unix(300, 0), MarkID: 3, LowestRunning: 3, Oldest: time.Unix(50, 0)})
	if got := f.get(); !got.Equal(time.Unix(50, 0)) {
		t.Fatalf("floor at %s", got)
	}
}

// However long a transaction runs, the marks that wait for it are bounded, and the latest survive.
func TestFloorMarksAreBounded(t *testing.T) {
	t.Parallel()
	var f floor
	for n := range int64(10_000) {
		f.rise(f.get(), coredb.FloorRow{MarkAt: time.Unix(1000+n, 0), MarkID: 100 + n, LowestRunning: 1})
		if len(f.marks) > maxMarks {
			t.Fatalf("%d marks", len(f.marks))
		}
	}
	f.rise(f.get(), coredb.FloorRow{MarkAt: time.Unix(20_000, 0), MarkID: 20_001, LowestRunning: 20_000})
	if got := f.get(); got.Before(time.Unix(10_000, 0)) {
		t.Fatalf("floor at %d only", got.Unix())
	}
}
