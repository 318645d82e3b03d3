// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/mappers/cmd"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

// maxBornMetrics is how many metrics of a birth become properties.
const maxBornMetrics = 1000

// maxBornDevices is how many devices of an edge node are taken.
const maxBornDevices = 1000

// browseSparkplug has an edge node of Sparkplug B born again, and makes a device of each birth that comes within the time.
func browseSparkplug(ctx context.Context, o client.Options, at, name, node string, wait time.Duration) ([]cmd.FoundDevice, error) {
	group, edge, ok := strings.Cut(at, "/")
	if !ok || group == "" || edge == "" || strings.ContainsAny(edge, "/+#\x00") || strings.ContainsAny(group, "+#\x00") {
		return nil, fmt.Errorf("--sparkplug: %q must be group/edge node", at)
	}
	source := sparkplugSource{group: group, node: edge}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	births := make(chan sparkplugMessage, 1000)
	o.ClientID, o.CleanStart, o.Attempts = "browse-mqtt-"+rand.Text()[:8], true, 1
	for _, filter := range source.filters() {
		o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: filter, QoS: 1})
	}
	o.OnMessage = func(m client.Message) {
		if _, s, ok, _ := parseSparkplug(m); ok && strings.HasSuffix(s.kind, "BIRTH") && !m.Retained {
			select {
			case births <- s:
			default:
			}
		}
	}
	connected := make(chan struct{}, 1)
	o.OnConnect = func(context.Context, bool) error {
		select {
		case connected <- struct{}{}:
		default:
		}
		return nil
	}
	c, err := client.New(o)
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	found := map[string]cmd.FoundDevice{}
	quiet := time.NewTimer(wait) // births come one after the other
	defer quiet.Stop()
	for {
		select {
		case <-connected:
			c.PublishAsync(rebirthCommand(source), nil)
		case <-quiet.C:
			cancel()
		case m := <-births:
			quiet.Reset(time.Second)
			d := sparkplugDevice(source, m, name, node)
			if len(d.Properties) > 0 && len(found) < maxBornDevices {
				found[m.device] = d
			}
		case err := <-ended:
			if ctx.Err() == nil {
				return nil, err
			}
			if len(found) == 0 {
				return nil, fmt.Errorf("no birth of %s within %s: is the edge node connected to this broker?", at, wait)
			}
			var list []cmd.FoundDevice
			for _, device := range slices.Sorted(maps.Keys(found)) {
				list = append(list, found[device])
			}
			return list, nil
		}
	}
}

// rebirthCommand asks an edge node to be born again.
func rebirthCommand(to sparkplugSource) client.Message {
	rebirth, _ := sparkplug.Value(sparkplug.TypeBoolean, "true")
	rebirth.Name = "Node Control/Rebirth"
	return sparkplugCommand(to, rebirth)
}

// sparkplugDevice is a device as its birth describes it. Which metrics can be set, births don't say.
func sparkplugDevice(source sparkplugSource, m sparkplugMessage, name, node string) cmd.FoundDevice {
	source.device = m.device
	at := strings.TrimSuffix(source.group+"/"+source.node+"/"+source.device, "/")
	d := cmd.FoundDevice{Node: node, Protocol: "mqtt", Config: map[string]string{"sparkplug": at}}
	switch {
	case name == "" && m.device == "":
		d.Name = source.node
	case name == "":
		d.Name = source.node + "-" + m.device
	case m.device == "":
		d.Name = name
	default:
		d.Name = name + "-" + m.device
	}
	for _, metric := range m.payload.Metrics {
		if metric.Name == "" || metric.Name == "bdSeq" || strings.HasPrefix(metric.Name, "Node Control/") || len(d.Properties) == maxBornMetrics {
			continue
		}
		typ := "string"
		switch metric.Type {
		case sparkplug.TypeInt8, sparkplug.TypeInt16, sparkplug.TypeInt32, sparkplug.TypeInt64, sparkplug.TypeUInt8, sparkplug.TypeUInt16, sparkplug.TypeUInt32, sparkplug.TypeUInt64:
			typ = "int"
		case sparkplug.TypeFloat:
			typ = "float"
		case sparkplug.TypeDouble:
			typ = "double"
		case sparkplug.TypeBoolean:
			typ = "boolean"
		case sparkplug.TypeBytes, sparkplug.TypeFile:
			typ = "bytes"
		case sparkplug.TypeDataSet, sparkplug.TypeTemplate:
			continue
		}
		d.Properties = append(d.Properties, cmd.FoundProperty{Name: metric.Name, Type: typ, Config: map[string]string{"metric": metric.Name}})
	}
	return d
}
