// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// BenchmarkReconnect is what it costs the hub that all of 10,000 keys changed on a node while it was
// away, from its connection until it has heard that they are on disk, when nobody subscribes.
func BenchmarkReconnect(b *testing.B) {
	s, err := disk.Open(disk.Options{Path: filepath.Join(b.TempDir(), "log")})
	require.NoError(b, err)
	defer s.Close()
	said := make(chan []byte, 64) // by the hub
	up, down := topics.SyncTopics("n1")
	tw, err := New(context.Background(), Options{
		CreateNode: createNode(s),
		Reader:     s, Writer: s, Watcher: s, Replicas: s, Rand: rand.Uint64,
		Options: tree.Options{
			Log: zerolog.Nop(), Wanted: func(string) bool { return false },
			Publish: func(m broker.Message) {
				if m.Topic == down {
					said <- m.Payload
				}
			},
		},
	})
	require.NoError(b, err)
	ctx, stop := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { _ = tw.Run(ctx) })
	defer func() { stop(); run.Wait() }()

	owner, hears := link.NewOwner(link.Up, rand.Uint64), make(chan []byte, 64)
	go func() {
		for payload := range hears {
			tw.Publish(broker.Message{Topic: up, Payload: payload, Publisher: nodeIdentity("n1")}, func(error) {})
		}
	}()
	defer close(hears)
	round := func(n int) {
		for i := range 10_000 {
			_, _, err := owner.Put(link.Entry{
				Key:   topics.DeviceKey(fmt.Sprintf("press-%04d", i/10), topics.KindReported, fmt.Sprintf("property-%d", i%10)),
				Value: fmt.Appendf(nil, "%08.3f", float64(i*n)/7), TS: int64(n), Origin: "mapper-modbus",
			})
			require.NoError(b, err)
		}
	}
	n := 1
	for b.Loop() {
		b.StopTimer()
		round(n)
		n++
		owner.Connect(uint64(n))
		b.StartTimer()
		tw.Subscribed(nodeIdentity("n1"), down)
		for !owner.InStep() {
			for _, m := range owner.Messages() {
				payload, err := link.Encode(m)
				require.NoError(b, err)
				hears <- payload
			}
			m, err := link.Decode(<-said)
			require.NoError(b, err)
			if m.Map == link.Up {
				require.NoError(b, owner.Step(m))
			}
		}
		b.StopTimer()
		tw.Disconnected(nodeIdentity("n1"), nil)
		b.StartTimer()
	}
}
