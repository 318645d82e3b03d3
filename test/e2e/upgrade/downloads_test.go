// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/edge/blobs"
	"github.com/edgebus/edgebus/edge/forward"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/simnodes"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/resource"
)

// countedServer counts what is read from a connection.
type countedServer struct {
	net.Conn
	bytes *atomic.Int64
}

func (c countedServer) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// BenchmarkDownloads has NODES nodes (100) download a blob of MB megabytes (4) from one hub, over MBITS (100) Mbit/s that all share. A node is the
// downloading part of a core, with a connection and a directory of its own. The ratios are to the content of the blob, times the nodes.
func BenchmarkDownloads(b *testing.B) {
	nodes, size, rate := intSetting(b, "NODES", 100), intSetting(b, "MB", 4)*1_000_000, intSetting(b, "MBITS", 100)*1_000_000/8
	require.NoError(b, simnodes.RaiseFileLimit(uint64(10*nodes+1000)))
	for b.Loop() {
		s := stand.New(b, 1)
		content := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
		digest := resource.DigestOf(content)
		st, err := disk.Open(disk.Options{Path: filepath.Join(s.Dir, "hub", "log")})
		require.NoError(b, err)
		file := fmt.Sprintf(`"path":"/opt/artifact","digest":%q,"size":%d`, digest, size)
		for i := range nodes {
			name := fmt.Sprintf("d%d", i)
			for kind, text := range map[string]string{
				resource.KindNode: fmt.Sprintf(`{"apiVersion":%q,"kind":"Node","metadata":{"name":%q,"uid":"%d","generation":1},"spec":{"config":[`+
					`{"name":"artifact","configType":"FileListProviderSpec","files":[{%s}]}]}}`, resource.APIVersion, name, i, file),
				resource.KindRenderedSpec: `{"renderedVersion":"1","files":[{"type":"file","mode":"0644",` + file + `}]}`,
			} {
				_, err = st.Create(b.Context(), store.Object{Key: store.Key{Kind: kind, Name: name}, Data: []byte(text)})
				require.NoError(b, err)
			}
		}
		require.NoError(b, st.Close())
		s.Up("hub")
		put, err := http.NewRequestWithContext(b.Context(), http.MethodPut, "http://"+s.Hub.HTTP+"/blobs/"+digest, bytes.NewReader(content))
		require.NoError(b, err)
		res, err := http.DefaultClient.Do(put)
		require.NoError(b, err)
		require.NoError(b, res.Body.Close())
		require.Equal(b, http.StatusOK, res.StatusCode)
		link := s.Node("n1").Net
		link.Set(faults.Conditions{Shared: rate})

		ctx, stop := context.WithCancel(b.Context())
		var running, connected sync.WaitGroup
		var received atomic.Int64
		connected.Add(nodes)
		all := make([]*blobs.Downloads, nodes)
		begin := make(chan struct{})
		for i := range all {
			all[i] = startDownloader(b, s, fmt.Sprintf("d%d", i), link.Addr(), &received, begin, sync.OnceFunc(connected.Done))
			running.Go(func() { _ = all[i].Run(ctx) })
		}
		var done sync.WaitGroup
		failed := make(chan error, nodes)
		for _, d := range all {
			done.Go(func() {
				if _, err := d.Want(ctx, digest, int64(size)); err != nil {
					failed <- err
				}
			})
		}
		connected.Wait()
		before, peak, waited := anonymousMemory(b, s.Pid("hub")), 0.0, make(chan struct{})
		start, overhead := time.Now(), received.Load()
		close(begin)
		go func() { done.Wait(); close(waited) }()
		for over := false; !over; {
			select {
			case <-waited:
				over = true
			case <-time.After(100 * time.Millisecond): // how often the memory is read
				peak = max(peak, anonymousMemory(b, s.Pid("hub")))
			}
		}
		took := time.Since(start)
		require.Empty(b, failed)
		raw := float64(nodes) * float64(size)
		b.ReportMetric(took.Seconds()/(raw/float64(rate)), "time-ratio")
		b.ReportMetric(float64(received.Load()-overhead)/raw, "bytes-ratio")
		b.ReportMetric((peak-before)/float64(nodes), "hub-B/node")
		b.ReportMetric(0, "ns/op")
		stop()
		running.Wait()
	}
}

// startDownloader is the downloading part of a core, which is connected when it is told to begin.
func startDownloader(b *testing.B, s *stand.Stand, node, hub string, received *atomic.Int64, begin <-chan struct{}, connected func()) *blobs.Downloads {
	b.Helper()
	var d *blobs.Downloads
	d, err := blobs.New(blobs.Options{
		Dir: filepath.Join(s.Dir, "nodes", node), Node: node, Bytes: 1 << 30, Budget: forward.NewBudget(0, time.Now), Log: zerolog.Nop(),
		Connect: func(ctx context.Context) error {
			var c *client.Client
			c, err := client.New(client.Options{
				Servers: []string{"mqtt://" + hub}, ClientID: "node/" + node + "/blobs", User: "node/" + node, CleanStart: true, Log: zerolog.Nop(),
				Subscriptions: []client.Subscription{{Filter: d.Filter()}},
				Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, address)
					return countedServer{conn, received}, err
				},
				OnConnect: func(ctx context.Context, _ bool) error {
					connected()
					select {
					case <-begin:
					case <-ctx.Done():
					}
					d.Connected(c)
					return nil
				},
				OnMessage: d.Received, OnDisconnect: func(error) { d.Disconnected() },
			})
			if err != nil {
				return err
			}
			return c.Run(ctx)
		},
	})
	require.NoError(b, err)
	return d
}

func intSetting(b *testing.B, name string, byDefault int) int {
	b.Helper()
	text := os.Getenv(name)
	if text == "" {
		return byDefault
	}
	value, err := strconv.Atoi(text)
	require.NoError(b, err, name)
	return value
}

var rssAnon = regexp.MustCompile(`(?m)^RssAnon:\s+(\d+) kB$`)

// anonymousMemory is a process's memory that no file stands behind, in bytes.
func anonymousMemory(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(b, err)
	m := rssAnon.FindSubmatch(text)
	require.NotNil(b, m)
	kb, err := strconv.ParseFloat(string(m[1]), 64)
	require.NoError(b, err)
	return kb * 1024
}
