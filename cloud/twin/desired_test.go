// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Who wants something of a device may not date it in the future, where it would win for ever.
func TestDesiredTimestampsAreNotInTheFuture(t *testing.T) {
	r, _ := newJoinedRig(t)
	want := func(value string, ahead time.Duration) error {
		ts := broker.UserProperty{Key: "ts", Value: resource.FormatTime(time.Now().Add(ahead))}
		return r.await(r.publishAs(operator, lampDesired+"/power", value, broker.Properties{User: []broker.UserProperty{ts}}))
	}
	require.NoError(t, want("ON", 30*time.Second))
	err := want("OFF", time.Hour)
	require.Equal(t, resource.Invalid, resource.KindOf(err))
	require.ErrorContains(t, err, "more than a minute ahead of the clock here")
	d, _ := r.device("lamp")
	require.Equal(t, resource.Value("ON"), d.Spec.Desired["power"])
}

// A desired value that a durable session gets is acknowledged once both the store and that session have it, and refused where the
// session's disk is full.
func TestADesiredValueIsAcknowledgedWhenDurableSessionsHaveIt(t *testing.T) {
	r, _ := newJoinedRig(t)
	outcomes := make(chan func(error), 16)
	r.kept.Store(&outcomes)
	write := func(value string) <-chan error {
		return r.publishAs(operator, lampDesired+"/brightness", value, broker.Properties{})
	}
	answer := write("40")
	done := <-outcomes
	require.Empty(t, answer, "the store has it, and the session doesn't")
	done(nil)
	require.NoError(t, <-answer)
	answer = write("41")
	(<-outcomes)(resource.Errorf(resource.Unavailable, "", "no space left on device"))
	require.ErrorIs(t, <-answer, resource.Unavailable)
	r.kept.Store(nil)
	require.NoError(t, <-write("42"))
}

// Nobody waits for a session's copy beyond the hub's end, the device's, or the time that a write may take.
func TestNobodyWaitsForACopyForEver(t *testing.T) {
	s := newDeliveryWaits()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.wait(ctx, new(device), 1), context.Canceled)
	removed := new(device)
	s.remove(removed)
	require.NoError(t, s.wait(t.Context(), removed, 1))
	s.close()
	require.ErrorIs(t, s.wait(t.Context(), new(device), 1), resource.Unavailable)
}

func setOverride(t *testing.T, c *core) {
	c.mu.Lock()
	_, _, err := c.up.Put(link.Entry{Key: "devices/lamp/override/power", Value: []byte("ON"), TS: 1})
	c.mu.Unlock()
	require.NoError(t, err)
	c.talk()
}

func TestAdoptionIsTriedUntilItSucceeds(t *testing.T) {
	r := newRig(t)
	r.create(resource.KindDeviceModel, "lamp", lampModel(true))
	r.create(resource.KindDevice, "lamp", lampOn("n1"))
	c := r.connect(newCore("n1"))
	c.gets("membership", `{"devices":["lamp"]}`)
	r.fault.objects.Store(true)
	setOverride(t, c)
	r.inStep()
	got, _ := c.has("devices/lamp/desired/power")
	require.Empty(t, got)
	r.fault.objects.Store(false)
	c.gets("devices/lamp/desired/power", "ON")
}

func TestAdoptionAfterARestart(t *testing.T) {
	r := newRig(t)
	r.create(resource.KindDeviceModel, "lamp", lampModel(true))
	c := r.connect(newCore("n1"))
	setOverride(t, c) // stored, of a device that is not bound yet
	r.inStep()
	r.restart()
	r.create(resource.KindDevice, "lamp", lampOn("n1"))
	r.connect(c)
	c.gets("devices/lamp/desired/power", "ON")
}

func TestAStoppingHubAnswersEveryDesiredWrite(t *testing.T) {
	r, _ := newJoinedRig(t)
	answers := make(chan error, 200)
	for i := range cap(answers) {
		payload := []byte([]string{"ON", "OFF"}[i%2])
		go r.twins.Publish(broker.Message{Topic: lampDesired + "/power", Payload: payload}, func(err error) { answers <- err })
	}
	r.stop()
	for range cap(answers) {
		select {
		case err := <-answers:
			require.True(t, err == nil || errors.Is(err, resource.Unavailable) || strings.Contains(err.Error(), "clos"), "%v", err)
		case <-time.After(testTimeout):
			t.Fatal("a publisher waits for ever")
		}
	}
}

func TestAThousandDesiredWritesOfOnePublisherKeepTheirOrder(t *testing.T) {
	r, c := newJoinedRig(t)
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Add(1)
		r.twins.Publish(broker.Message{Topic: lampDesired + "/brightness", Payload: fmt.Append(nil, i%101)}, func(err error) {
			require.NoError(t, err)
			wg.Done()
		})
	}
	wg.Wait()
	d, _ := r.device("lamp")
	require.Equal(t, resource.Value(fmt.Sprint(999%101)), d.Spec.Desired["brightness"])
	require.Equal(t, uint64(1000), d.DesiredMeta["brightness"].Ver)
	require.Eventually(t, func() bool { // earlier writes had this value, too
		return c.gets("devices/lamp/desired/brightness", fmt.Sprint(999%101)).Ver == 1000
	}, testTimeout, time.Millisecond)
}

func TestUnchangedDesiredValuesAreNotWritten(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.gets("devices/lamp/desired/power", "ON")
	_, before := r.device("lamp")
	for range 20 {
		require.NoError(t, r.send(lampDesired+"/power", "ON"))
	}
	d, after := r.device("lamp")
	require.Equal(t, before.Data, after.Data)
	require.Equal(t, uint64(1), d.DesiredMeta["power"].Ver)
}

func TestDesiredWritesWhileTheDeviceIsBeingCreated(t *testing.T) {
	r := newRig(t)
	c := r.connect(newCore("n1"))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = r.send(lampDesired+"/power", "ON") // refused, or stored: never anything else
			}
		}
	})
	r.create(resource.KindDevice, "lamp", lampOn("n1"))
	r.create(resource.KindDeviceModel, "lamp", lampModel(false))
	c.gets("devices/lamp/desired/power", "ON")
	close(stop)
	wg.Wait()
}

func TestAnUncontestedOverrideIsAdopted(t *testing.T) {
	r := newRig(t)
	r.create(resource.KindDeviceModel, "lamp", lampModel(true))
	r.create(resource.KindDevice, "lamp", lampOn("n1"))
	c := r.connect(newCore("n1"))
	c.gets("membership", `{"devices":["lamp"]}`)
	c.mu.Lock()
	_, _, err := c.up.Put(link.Entry{Key: "devices/lamp/override/power", Value: []byte("ON"), TS: 1})
	c.mu.Unlock()
	require.NoError(t, err)
	c.talk()
	require.Equal(t, uint64(1), c.gets("devices/lamp/desired/power", "ON").Ver)
	d, _ := r.device("lamp")
	require.Equal(t, "node/n1", d.DesiredMeta["power"].Origin)

	c.mu.Lock()
	_, _, err = c.up.Put(link.Entry{Key: "devices/lamp/override/power", Value: []byte("OFF"), TS: 2, Meta: link.Meta{BasedOn: 99}})
	c.mu.Unlock()
	require.NoError(t, err)
	c.talk()
	r.inStep()
	require.NoError(t, r.send(lampDesired+"/brightness", "1"))
	c.gets("devices/lamp/desired/brightness", "1")
	c.gets("devices/lamp/desired/power", "ON") // contested: not adopted
}

// TestDesiredValuesBelongToTheirWriters has values of two writers for a Device whose fields have owners.
func TestDesiredValuesBelongToTheirWriters(t *testing.T) {
	r, _ := newJoinedRig(t)
	r.edit("lamp", func(d *resource.Device) { d.Metadata.ManagedFields = json.RawMessage(`["ann"]`) })
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	d, _ := r.device("lamp")
	require.JSONEq(t, `["ops"]`, string(d.Metadata.ManagedFields))
	require.Equal(t, resource.Value("ON"), d.Spec.Desired["power"])
	require.NoError(t, r.send(lampDesired, `{"power":"OFF","brightness":40}`))
	d, _ = r.device("lamp")
	require.JSONEq(t, `["ops"]`, string(d.Metadata.ManagedFields))
	require.Equal(t, resource.Value("OFF"), d.Spec.Desired["power"])
	require.Equal(t, resource.Value("40"), d.Spec.Desired["brightness"])
}
