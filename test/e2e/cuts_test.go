// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/stand"
)

// A slow line that breaks a hundred times, each time amid messages, leaves nothing behind in the link: once it is good each message
// arrives, and none is waited for any more.
func TestALineThatBreaksAHundredTimesLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "core.yaml"), []byte(`
link: {retry: {backoff: {min: 5ms, max: 10ms}}}
bridge:
  - {direction: up, filter: "loose/#"}
  - {direction: up, filter: "kept/#", store: true}
`), 0o600))
	s.Up("hub", "core")
	s.InStep()
	line := s.Node("n1").Net
	line.Set(faults.Conditions{Bandwidth: 100_000})

	flood := s.Client(s.Core(), nil)
	over := make(chan struct{})
	var flooding sync.WaitGroup
	flooding.Go(func() {
		body := bytes.Repeat([]byte("z"), 400)
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
			for range 20 {
				flood.PublishAsync(client.Message{Topic: "loose/x", Payload: body}, nil)
			}
		}
	})
	stop := sync.OnceFunc(func() { close(over); flooding.Wait() })
	defer stop()
	kept := 0
	publisher := s.Client(s.Core(), nil)
	for cut := range 100 {
		if cut%10 == 0 {
			require.NoError(t, publisher.Publish(t.Context(), client.Message{Topic: fmt.Sprint("kept/", kept), Payload: []byte("x"), QoS: 1, Retain: true}))
			kept++
		}
		_, before := line.Connections()
		up, _ := line.Passed()
		s.Eventually(stand.WaitTimeout, func() error {
			if now, _ := line.Passed(); now < up+4000 { // the link is up, and amid a message
				return fmt.Errorf("cut %d: %d bytes have passed", cut, now-up)
			}
			return nil
		})
		line.Drop()
		s.Eventually(stand.WaitTimeout, func() error {
			if _, ever := line.Connections(); ever <= before {
				return fmt.Errorf("cut %d: no other connection", cut)
			}
			return nil
		})
	}
	stop()
	line.Set(faults.Conditions{})
	hub := s.Watch(s.Hub.MQTT, "v1/nodes/n1/bridge/#", nil)
	for i := range kept {
		hub.Await(fmt.Sprint("v1/nodes/n1/bridge/kept/", i), "x")
	}
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_link_pending_messages", 0) })
	s.Eventually(stand.WaitTimeout, func() error { // QoS 0: the first may go while the link is still being made
		if err := publisher.Publish(t.Context(), client.Message{Topic: "loose/last", Payload: []byte("arrives"), Retain: true}); err != nil {
			return err
		}
		if m, ok := hub.Get("v1/nodes/n1/bridge/loose/last"); !ok || string(m.Payload) != "arrives" {
			return fmt.Errorf("the hub has %q", m.Payload)
		}
		return nil
	})
	s.InStep()
}
