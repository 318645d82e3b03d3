// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics"
)

const benchPayload = 256

// BenchmarkOffline is QoS 1 to an offline session, acknowledged when on disk, beside
// what the disk can do with the same bytes: groups appended and synced.
func BenchmarkOffline(b *testing.B) {
	for _, shape := range []struct{ publishers, inflight int }{{1, 256}, {1, 1000}, {50, 64}} {
		b.Run(fmt.Sprintf("broker/%dx%d", shape.publishers, shape.inflight), func(b *testing.B) {
			benchBroker(b, shape.publishers, shape.inflight)
		})
	}
	for _, group := range []int{256, 1000, 3200} {
		b.Run(fmt.Sprintf("append+fsync/%d", group), func(b *testing.B) { benchAppend(b, group) })
		b.Run(fmt.Sprintf("journal/%d", group), func(b *testing.B) { benchJournal(b, group) })
	}
}

func msgRate(b *testing.B) { b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s") }

func benchBroker(b *testing.B, publishers, inflight int) {
	j, err := journal.Open(journal.Options{Dir: b.TempDir()})
	require.NoError(b, err)
	defer j.Close()
	br, err := New(Options{
		Listeners: []Listener{{Address: "127.0.0.1:0"}}, Log: zerolog.Nop(), Journal: j,
		Auth: Auth{Anonymous: []topics.Role{topics.RoleOperator}},
	})
	require.NoError(b, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- br.Serve(ctx) }()
	sub := benchClient(b, br, "sub", persistentSession)
	_, err = sub.Write(encodePacket(b, packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 1, Filters: packets.Subscriptions{{Filter: "bench/#", Qos: 1}},
	}, 5))
	require.NoError(b, err)
	buf := make([]byte, 64)
	_, err = sub.Read(buf)
	require.NoError(b, err)
	require.NoError(b, sub.Close())
	conns := make([]net.Conn, publishers)
	for i := range conns {
		conns[i] = benchClient(b, br, fmt.Sprint("pub", i))
	}
	b.ResetTimer()
	var all sync.WaitGroup
	for i, c := range conns {
		n := b.N / publishers
		if i == 0 {
			n += b.N % publishers
		}
		all.Go(func() { benchPublish(b, c, fmt.Sprint("bench/", i), n, inflight) })
	}
	all.Wait()
	b.StopTimer()
	msgRate(b)
	require.Equal(b, int64(b.N), br.Stats().Queued)
	s := j.Stats()
	b.ReportMetric(float64(s.Commits)/float64(max(s.Groups, 1)), "msg/group")
	stop()
	<-served
}

func benchClient(b *testing.B, br *Broker, id string, opts ...connectOption) net.Conn {
	c, err := net.Dial("tcp", br.Addrs()[0].String())
	require.NoError(b, err)
	_, err = c.Write(encodePacket(b, connectPacket(id, opts...), 5))
	require.NoError(b, err)
	head := make([]byte, 256)
	_, err = c.Read(head)
	require.NoError(b, err)
	require.Equal(b, packets.Connack<<4, head[0])
	return c
}

// benchPublish keeps so many publishes in flight. A PUBACK without a reason has 4 bytes.
func benchPublish(b *testing.B, c net.Conn, topic string, n, inflight int) {
	one := encodePacket(b, publishPacket(topic, strings.Repeat("x", benchPayload), 1, 1), 5)
	at := len(one) - benchPayload - 1 - 2 // of the packet id
	var out []byte
	buf := make([]byte, 64<<10)
	for sent, acked, rest := 0, 0, 0; acked < n; {
		out = out[:0]
		for ; sent < n && sent-acked < inflight; sent++ {
			binary.BigEndian.PutUint16(one[at:], uint16(sent%65535)+1)
			out = append(out, one...)
		}
		if _, err := c.Write(out); err != nil {
			b.Error(err)
			return
		}
		got, err := c.Read(buf)
		if err != nil {
			b.Error(err)
			return
		}
		acked += (rest + got) / 4
		rest = (rest + got) % 4
	}
}

func benchAppend(b *testing.B, group int) {
	f, err := os.Create(filepath.Join(b.TempDir(), "log"))
	require.NoError(b, err)
	defer f.Close()
	buf := make([]byte, group*(benchPayload+24))
	b.ResetTimer()
	for i := 0; i < b.N; i += group {
		_, err := f.Write(buf[:min(group, b.N-i)*(benchPayload+24)])
		require.NoError(b, err)
		require.NoError(b, f.Sync())
	}
	msgRate(b)
}

func benchJournal(b *testing.B, group int) {
	j, err := journal.Open(journal.Options{Dir: b.TempDir()})
	require.NoError(b, err)
	defer j.Close()
	value := make([]byte, benchPayload+24)
	b.ResetTimer()
	for i := 0; i < b.N; i += group {
		n := min(group, b.N-i)
		var all sync.WaitGroup
		all.Add(n)
		for k := range n {
			j.Commit([]journal.RecordChange{{ID: uint64(i + k + 1), Value: value}}, func(err error) {
				if err != nil {
					b.Error(err)
				}
				all.Done()
			})
		}
		all.Wait()
	}
	msgRate(b)
}
