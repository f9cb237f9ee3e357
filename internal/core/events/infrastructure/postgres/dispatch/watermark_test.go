package dispatch

import (
	"testing"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

type row = coredb.SampleWatermarkRow

func TestWatermarkRises(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Unix(1_000_000+int64(second), 0) }
	for name, c := range map[string]struct {
		samples []row
		want    time.Time
	}{
		"no other transaction":      {[]row{{SampledAt: at(1), SampleID: 10, LowestRunning: 10}}, at(1)},
		"an older transaction runs": {[]row{{SampledAt: at(1), SampleID: 10, LowestRunning: 9}}, time.Time{}},
		"it has ended since": {
			[]row{{SampledAt: at(1), SampleID: 10, LowestRunning: 9},
				{SampledAt: at(2), SampleID: 12, LowestRunning: 11}}, at(1),
		},
		"never past what is pending": {[]row{{SampledAt: at(5), SampleID: 10, LowestRunning: 10, Oldest: at(3)}},
			at(3)},
		"what is scheduled for later holds nothing down": {
			[]row{{SampledAt: at(5), SampleID: 10, LowestRunning: 10, Oldest: at(9)}}, at(5)},
		"a second sample proves nothing more": {
			[]row{{SampledAt: at(5), SampleID: 10, LowestRunning: 10},
				{SampledAt: at(6), SampleID: 12, LowestRunning: 11, Oldest: at(6)}}, at(5),
		},
		"a clock set back": {
			[]row{{SampledAt: at(5), SampleID: 10, LowestRunning: 10},
				{SampledAt: at(4), SampleID: 11, LowestRunning: 11}}, time.Time{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w Watermark
			for _, m := range c.samples {
				w.raise(w.Get(), m)
			}
			if got := w.Get(); !got.Equal(c.want) {
				t.Fatalf("watermark at %s, want %s", got, c.want)
			}
		})
	}
}

// A row found below the watermark must not be lost to a sample that was taken before.
func TestALoweredWatermarkSurvivesAnOlderSample(t *testing.T) {
	t.Parallel()
	var w Watermark
	w.raise(w.Get(), row{SampledAt: time.Unix(100, 0), SampleID: 1, LowestRunning: 1})
	used := w.Get()
	w.Lower(time.Unix(50, 0))
	w.raise(used, row{SampledAt: time.Unix(200, 0), SampleID: 2, LowestRunning: 2})
	if got := w.Get(); !got.Equal(time.Unix(50, 0)) {
		t.Fatalf("watermark at %s", got)
	}
	w.raise(w.Get(), row{SampledAt: time.Unix(300, 0), SampleID: 3, LowestRunning: 3, Oldest: time.Unix(50, 0)})
	if got := w.Get(); !got.Equal(time.Unix(50, 0)) {
		t.Fatalf("watermark at %s", got)
	}
}

// However long a transaction runs, the samples that wait for it are bounded, and the latest survive.
func TestWaitingSamplesAreBounded(t *testing.T) {
	t.Parallel()
	var w Watermark
	for n := range int64(10_000) {
		w.raise(w.Get(), row{SampledAt: time.Unix(1000+n, 0), SampleID: 100 + n, LowestRunning: 1})
		if len(w.samples) > maxSamples {
			t.Fatalf("%d samples", len(w.samples))
		}
	}
	w.raise(w.Get(), row{SampledAt: time.Unix(20_000, 0), SampleID: 20_001, LowestRunning: 20_000})
	if got := w.Get(); got.Before(time.Unix(10_000, 0)) {
		t.Fatalf("watermark at %d only", got.Unix())
	}
}

func TestAWatermarkIsSampledAfterManyRows(t *testing.T) {
	t.Parallel()
	w := Watermark{sampledAt: time.Now().Add(-pgtx.WatermarkInterval)}
	if w.addClaimed(fewRows - 1); w.due() {
		t.Error("it is due after few rows")
	}
	if w.addClaimed(1); !w.due() {
		t.Error("it is not due after many")
	}
	if w.addClaimed(fewRows); w.due() {
		t.Error("it is due again at once")
	}
	if w.sampledAt = time.Now().Add(-pgtx.WatermarkRest); !w.due() {
		t.Error("it is not due after a long time")
	}
}
