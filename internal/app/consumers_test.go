package app_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"spectral/internal/app"
	"spectral/internal/core/events"
)

func TestSubscriptionsOfClasses(t *testing.T) {
	t.Parallel()
	type payload struct{}
	var all []events.Contract
	var builders []app.ConsumerBuilder
	for eventType, class := range map[string]string{
		"worlds.a.happened": "", "worlds.b.happened": "slow", "worlds.c.happened": "slow", "worlds.d.happened": "llm",
	} {
		all = append(all, events.Contract{
			Type: eventType, Version: 1, Source: events.Worlds, Payload: payload{},
			Class: class, ContentClass: events.Operational,
		})
		builders = append(builders, func(deps app.Deps) events.Subscription {
			return events.Subscription{
				EventType: eventType, Channel: events.ChannelName(deps.Generation, class),
				Primary: events.Registration{
					Name:    "platform." + strings.NewReplacer(".", "_").Replace(eventType),
					Handler: func(events.Tx) events.EventHandler { return nil },
				},
			}
		})
	}
	contracts, err := events.NewContracts(all...)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		classes, want []string
	}{
		{nil, []string{"worlds.a.happened", "worlds.b.happened", "worlds.c.happened", "worlds.d.happened"}},
		{[]string{"default"}, []string{"worlds.a.happened"}},
		{[]string{"slow"}, []string{"worlds.b.happened", "worlds.c.happened"}},
		{[]string{"slow", " default ", "slow"}, []string{"worlds.a.happened", "worlds.b.happened", "worlds.c.happened"}},
	} {
		subscriptions, err := app.Subscriptions(builders, contracts, app.Deps{Generation: 7}, c.classes)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range subscriptions {
			got = append(got, s.EventType)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.classes, got, c.want)
		}
	}
	faulty := func(app.Deps) events.Subscription {
		return events.Subscription{EventType: "worlds.a.happened"}
	}
	_, err = app.Subscriptions(append(builders, faulty), contracts, app.Deps{Generation: 7}, nil)
	if err == nil || !strings.HasPrefix(err.Error(), `subscription to "worlds.a.happened": `) {
		t.Errorf("a faulty subscription: %v", err)
	}
	_, err = app.Subscriptions(builders, contracts, app.Deps{Generation: 7}, []string{"slow", "Slow", ""})
	want := `no consumer belongs to the processing class "": choose among default, llm, slow
no consumer belongs to the processing class "Slow": choose among default, llm, slow`
	if !errors.As(err, new(*app.SettingsError)) || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
