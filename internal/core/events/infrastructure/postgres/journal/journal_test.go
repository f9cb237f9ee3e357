package journal

import "testing"

func TestTheCrashSlotWakesThoseThatTriedToTakeIt(t *testing.T) {
	t.Parallel()
	var slot CrashSlot
	woken := 0
	wake := func() { woken++ }
	if !slot.TryTake("first", wake) || slot.TryTake("second", wake) || slot.TryTake("second", wake) {
		t.Fatal("more than one holds the slot")
	}
	slot.Release()
	if woken != 1 || !slot.TryTake("second", wake) {
		t.Fatalf("%d woken", woken)
	}
}
