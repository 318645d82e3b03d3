// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/topics/resource"
)

const benchModel = `apiVersion: ` + resource.APIVersion + `
kind: DeviceModel
metadata: {name: plain}
spec:
  properties:
  - {name: level, type: int, accessMode: ReadWrite}
---
apiVersion: ` + resource.APIVersion + `
kind: Device
metadata: {name: d}
spec:
  deviceModelRef: {name: plain}
  nodeName: n1
  protocol: {type: virtual}
`

// BenchmarkStateDuringADownload measures how long a desired value takes from a publish on the hub to the node's broker, over a link
// of 2 Mbit/s with 20 ms each way, while it is idle and while a blob is downloaded over it.
func BenchmarkStateDuringADownload(b *testing.B) {
	const size, samples, pause = 60 << 20, 400, 50 * time.Millisecond
	for range b.N {
		w, content, digest := newDownload(b, size)
		w.Node("n1").Net.Set(faults.Conditions{Shared: 250_000, Delay: 20 * time.Millisecond})
		ctx := context.Background()
		require.NoError(b, w.Start(ctx, "hub"))
		require.NoError(b, putBlob(ctx, w, digest, content))
		require.NoError(b, w.Start(ctx, "core"))
		require.NoError(b, w.Apply(ctx, []byte(benchModel)))
		const topic = "v1/nodes/n1/devices/d/desired/level"
		arrived := make(chan string, 1000)
		run := func(broker string, o client.Options) *client.Client {
			o.Servers, o.ClientID, o.CleanStart, o.Log = []string{"mqtt://" + broker}, "bench-"+o.ClientID, true, zerolog.Nop()
			c, err := client.New(o)
			require.NoError(b, err)
			ctx, stop := context.WithCancel(ctx)
			var ended sync.WaitGroup
			ended.Go(func() { _ = c.Run(ctx) })
			b.Cleanup(func() {
				stop()
				ended.Wait()
			})
			return c
		}
		run(w.Node("n1").MQTT, client.Options{ClientID: "core", Subscriptions: []client.Subscription{{Filter: topic, QoS: 0}}, OnMessage: func(m client.Message) { arrived <- string(m.Payload) }})
		hub := run(w.Hub.MQTT, client.Options{ClientID: "hub"})
		value := 0
		send := func() time.Duration {
			value++
			text, began := fmt.Sprint(value), time.Now()
			for { // until the device is known
				err := hub.Publish(ctx, client.Message{Topic: topic, Payload: []byte(text), QoS: 1})
				if err == nil {
					break
				}
				time.Sleep(pause) // before it is tried again
			}
			for got := range arrived {
				if got == text {
					return time.Since(began)
				}
			}
			return 0
		}
		measure := func() (p50, p99 time.Duration) {
			var all []time.Duration
			for range samples {
				all = append(all, send())
				time.Sleep(pause) // the rate at which state is sent
			}
			slices.Sort(all)
			return all[samples/2], all[samples*99/100]
		}
		send()
		time.Sleep(2 * time.Second) // for what else happens after a start
		idle50, idle99 := measure()
		part := filepath.Join(w.Dir, "core", "downloads", strings.TrimPrefix(digest, resource.DigestPrefix)+".part")
		requestBlob(b, w, digest, size)
		written := func() int64 {
			info, err := os.Stat(part)
			if err != nil {
				return 0
			}
			return info.Size()
		}
		require.Eventually(b, func() bool { return written() > 1<<20 }, time.Minute, time.Millisecond)
		from, began := written(), time.Now()
		busy50, busy99 := measure()
		rate := float64(written()-from) / time.Since(began).Seconds()
		require.NotZero(b, rate)
		ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
		b.ReportMetric(ms(idle50), "idle-p50-ms")
		b.ReportMetric(ms(idle99), "idle-p99-ms")
		b.ReportMetric(ms(busy50), "download-p50-ms")
		b.ReportMetric(ms(busy99), "download-p99-ms")
		b.ReportMetric(float64(busy99)/float64(idle99), "ratio")
		b.ReportMetric(100*rate/250_000, "%-of-link")
	}
}
