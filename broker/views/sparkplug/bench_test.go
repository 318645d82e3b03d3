// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics/resource"
)

// BenchmarkAChangedValueOfTenThousandDevices is what the view itself does for a value that has changed.
func BenchmarkAChangedValueOfTenThousandDevices(b *testing.B) {
	v, now := New(Options{Group: "plant", EdgeNode: "n1"}), time.UnixMilli(1_700_000_000_000)
	x := views.NewExchange(v, 1)
	x.Tell(now, &views.NodeChanged{Node: views.Node{Name: "n1", Online: true}})
	devices := make([]*views.Device, 10_000)
	for i := range devices {
		devices[i] = &views.Device{
			Node: "n1", Object: &resource.Device{Metadata: resource.Meta{Name: fmt.Sprintf("d%d", i)}}, Model: model(0), State: resource.Online, Values: map[string]views.Value{},
		}
		x.Tell(now, &views.DeviceChanged{Device: devices[i], Whole: true})
	}
	x.Tell(now, &views.Settled{})
	b.ReportAllocs()
	i, bytes := 0, 0
	for b.Loop() {
		d := devices[i%len(devices)]
		d.Values["level"] = views.Value{Text: strconv.Itoa(i), Known: true, At: now}
		for _, a := range x.Tell(now, &views.DeviceChanged{Device: d, Properties: []string{"level"}}) {
			if p, ok := a.(*views.Publish); ok {
				bytes += len(p.Message.Topic) + len(p.Message.Payload)
			}
		}
		i++
	}
	b.ReportMetric(float64(bytes)/float64(i), "wire-B/op")
}
