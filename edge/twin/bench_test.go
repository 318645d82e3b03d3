// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// BenchmarkReported is what a reported value costs from the broker's call to its answer,
// 256 at a time, when nobody subscribes.
func BenchmarkReported(b *testing.B) {
	const devices, together = 100, 256
	s, err := store.Open(store.Options{Dir: b.TempDir(), Rand: rand.Uint64})
	require.NoError(b, err)
	defer s.Close()
	snap, err := s.Load()
	require.NoError(b, err)
	hub := link.NewOwner(link.Down, rand.Uint64)
	var topic []string
	for d := range devices {
		name := fmt.Sprintf("d%d", d)
		doc, err := json.Marshal(resource.NewBundle(resource.Device{Metadata: resource.Meta{Name: name}}, thermostat))
		require.NoError(b, err)
		_, _, err = hub.Put(link.Entry{Key: "devices/" + name, Value: doc, Ver: 1})
		require.NoError(b, err)
		topic = append(topic, "v1/nodes/n1/devices/"+name+"/reported/setpoint", "v1/nodes/n1/devices/"+name+"/reported/temperature")
	}
	hub.Connect(1)
	for !hub.InStep() {
		for _, m := range hub.Messages() {
			snap.Down.Step(m)
		}
		for _, m := range snap.Down.Messages() {
			require.NoError(b, hub.Step(m))
		}
	}
	require.NoError(b, s.Commit(store.Batch{Down: snap.Down.TakeChanges()}))
	tw, err := New(Options{Node: "n1", Store: s, Options: tree.Options{Log: zerolog.Nop(), Publish: func(broker.Message) {}, Wanted: func(string) bool { return false }}})
	require.NoError(b, err)
	ctx, stop := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { _ = tw.Run(ctx) })
	defer func() { stop(); run.Wait() }()
	b.ReportAllocs()
	for n := 0; b.Loop(); {
		var answered sync.WaitGroup
		for range together {
			n++
			answered.Add(1)
			m := broker.Message{Topic: topic[n%len(topic)], Payload: strconv.AppendInt(nil, int64(n), 10), QoS: 1}
			tw.Publish(m, func(err error) {
				if err != nil {
					b.Error(err)
				}
				answered.Done()
			})
		}
		answered.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/together, "ns/update")
}
