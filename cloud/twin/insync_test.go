package twin

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// checkStatusVersion says what in a stored Device's status is not about its spec.
func checkStatusVersion(o store.Object) error {
	var d resource.Device
	if err := json.Unmarshal(o.Data, &d); err != nil {
		return err
	}
	if err := json.Unmarshal(o.Status, &d.Status); err != nil {
		return fmt.Errorf("status %q: %w", o.Status, err)
	}
	inSync := resource.Condition{}
	for _, c := range d.Status.Conditions {
		if c.Type == resource.ConditionInSync {
			inSync = c
		}
		if c.ObservedGeneration != d.Metadata.Generation {
			return fmt.Errorf("%s is about generation %d of %d", c.Type, c.ObservedGeneration, d.Metadata.Generation)
		}
	}
	behind := false
	for property, value := range d.Spec.Desired {
		p := d.Status.Twin[property]
		if p.Desired == nil || p.Desired.Value != string(value) || p.Desired.Ver != d.DesiredMeta[property].Ver {
			return fmt.Errorf("%s is %q in the spec (version %d) and %+v in the twin", property, value, d.DesiredMeta[property].Ver, p.Desired)
		}
		behind = behind || p.Reported == nil || p.Reported.Value != string(value)
	}
	if want := map[bool]string{true: "False", false: "True"}[behind]; inSync.Status != want {
		return fmt.Errorf("InSync is %s, not %s: %s", inSync.Status, want, o.Status)
	}
	return nil
}

// Every version of a Device that the store ever has, and so every answer and every event of a watch, has a status
// that is about the spec beside it, whoever writes at the same time.
func TestNoVersionHasAnOlderSpecsStatus(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/state", resource.Online)
	require.NoError(t, r.send(lampDesired, `{"power":"OFF","brightness":0}`))
	c.report("devices/lamp/reported/power", "OFF")
	c.report("devices/lamp/reported/brightness", "0")
	require.Eventually(t, func() bool { _, o := r.device("lamp"); return checkStatusVersion(o) == nil && isInSync(o) }, testTimeout, pollInterval)
	_, o := r.device("lamp")

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := r.store.Watch(ctx, o.Key, o.Rev)
	require.NoError(t, err)
	defer stream.Close()
	seen, last := 0, make(chan error, 1)
	go func() {
		for {
			events, err := stream.Next(ctx)
			for _, e := range events {
				seen++
				if wrong := checkStatusVersion(e.Object); wrong != nil {
					last <- wrong
					return
				}
				if d := (resource.Device{}); json.Unmarshal(e.Object.Data, &d) == nil && d.Spec.Desired["power"] == "ON" && d.Spec.Desired["brightness"] == "100" {
					last <- nil
					return
				}
			}
			if err != nil {
				last <- err
				return
			}
		}
	}()
	var writers sync.WaitGroup
	writers.Go(func() {
		for i := range 60 {
			c.report("devices/lamp/reported/brightness", fmt.Sprint(i%100))
			c.report("devices/lamp/reported/temperature", fmt.Sprint(i))
		}
	})
	writers.Go(func() {
		for i := range 60 {
			require.NoError(t, r.send(lampDesired+"/brightness", fmt.Sprint(i%100)))
			_, o := r.device("lamp")
			require.NoError(t, checkStatusVersion(o), "right after the acknowledgement")
		}
	})
	writers.Wait()
	require.NoError(t, r.send(lampDesired, `{"power":"ON","brightness":100}`))
	require.NoError(t, <-last)
	require.Positive(t, seen)

	c.report("devices/lamp/reported/power", "ON")
	c.report("devices/lamp/reported/brightness", "100")
	require.Eventually(t, func() bool { _, o := r.device("lamp"); return checkStatusVersion(o) == nil && isInSync(o) }, testTimeout, pollInterval)
}

func isInSync(o store.Object) bool {
	for _, c := range conditionsOf(o.Status) {
		if c.Type == resource.ConditionInSync {
			return c.Status == "True"
		}
	}
	return false
}

// What a refusal answers is a version: it says nothing about a newer one.
func TestARefusalIsOfTheValueThatWasRefused(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.report("devices/lamp/refused/power", `{"for":1,"ver":1,"code":"Stuck"}`)
	reason := func() (reason string) {
		_, o := r.device("lamp")
		for _, c := range conditionsOf(o.Status) {
			if c.Type == resource.ConditionInSync {
				reason = c.Reason
			}
		}
		return reason
	}
	require.Eventually(t, func() bool { return reason() == resource.ReasonRefused }, testTimeout, pollInterval)
	require.NoError(t, r.send(lampDesired+"/power", "OFF"))
	require.Equal(t, resource.ReasonWaiting, reason())
	c.gets("devices/lamp/desired/power", "OFF")
	c.report("devices/lamp/refused/power", `{"for":2,"ver":2,"code":"Stuck"}`)
	require.Eventually(t, func() bool { return reason() == resource.ReasonRefused }, testTimeout, pollInterval)
}

// The twin that is asked for over MQTT right after a write has it.
func TestTheTwinOnTheBusHasWhatWasAcknowledged(t *testing.T) {
	r, _ := newJoinedRig(t)
	for i := range 20 {
		want := fmt.Sprint(i)
		require.NoError(t, r.send(lampDesired+"/brightness", want))
		done := make(chan error, 1)
		r.twins.Publish(broker.Message{
			Topic: "v1/nodes/n1/devices/lamp/get", Publisher: &broker.Identity{ClientID: "ops"},
			Props: broker.Properties{ResponseTopic: "answers"},
		}, func(err error) { done <- err })
		require.NoError(t, <-done)
		answers := r.said("answers")
		var twin map[string]resource.TwinProperty
		require.NoError(t, json.Unmarshal([]byte(answers[len(answers)-1]), &twin))
		require.Equal(t, want, twin["brightness"].Desired.Value)
		require.False(t, twin["brightness"].InSync)
	}
}
