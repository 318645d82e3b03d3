// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

func TestTheReasonOfADeviceThatIsNotOnline(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	d.toys["lamp"].die(errors.New("no power"))
	n.run(d, nil)
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.eventually("devices/lamp/state", "offline")
	n.eventually("devices/lamp/problem", `{"code":"Unreachable","message":"no power"}`)
	n.eventually("mappers/m1/protocols", `["toy","playthings"]`)

	d.toys["lamp"].die(errors.New("no network"))
	n.eventually("devices/lamp/problem", `{"code":"Unreachable","message":"no network"}`)
	require.Len(t, n.published("devices/lamp/problem"), 2, "the same again is no news")
	require.Equal(t, []string{"offline"}, n.published("devices/lamp/state"))

	d.toys["lamp"].die(nil)
	n.eventually("devices/lamp/state", "online")
	n.attach("lamp", "toy", map[string]string{"bad": "yes"}, toyModel(nil))
	n.eventually("devices/lamp/problem", `{"code":"BadConfig","message":"spec.protocol.config.bad: must not be set"}`)
	n.eventually("devices/lamp/state", "offline")
}

func TestARetryReportsTheSameReason(t *testing.T) {
	at := func(port int) error {
		return fmt.Errorf("modbus: %w", &net.OpError{
			Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port},
			Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 502}, Err: errors.New("connection reset by peer"),
		})
	}
	require.Equal(t, "modbus: read tcp 10.0.0.5:502: connection reset by peer", stableText(at(4711)))
	require.Equal(t, stableText(at(4711)), stableText(at(4712)))
	require.Equal(t, "the device closed the connection", stableText(io.EOF))
	require.Equal(t, "modbus: the device closed the connection", stableText(fmt.Errorf("modbus: %w", io.ErrUnexpectedEOF)))
}

// brokenBusDriver can't name the bus of a device that has the setting broken.
type brokenBusDriver struct{ *toyDriver }

func (brokenBusDriver) Bus(d Device) string {
	if d.Config["broken"] != "" {
		panic("no such bus")
	}
	return "bus"
}

func TestADriverThatPanicsNamingTheBus(t *testing.T) {
	n := newNode(t)
	n.attach("lamp", "toy", map[string]string{"broken": "yes"}, toyModel(nil))
	n.attach("radio", "toy", nil, toyModel(nil))
	n.run(brokenBusDriver{newToys("lamp", "radio")}, nil)
	n.eventually("devices/lamp/problem", `{"code":"BadConfig","message":"spec.protocol: its bus is unknown: the driver panicked: no such bus"}`)
	n.eventually("devices/lamp/state", "offline")
	n.eventually("devices/radio/state", "online")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.eventually("devices/lamp/state", "online")
	n.attach("lamp", "toy", map[string]string{"broken": "yes"}, toyModel(nil))
	n.eventually("devices/lamp/state", "offline")
}

// brokenRounder can't tell which values its devices can have.
type (
	brokenRounder struct{ *toyDriver }
	brokenToy     struct{ *toyDevice }
)

func (d brokenRounder) Open(ctx context.Context, dev Device) (Session, error) {
	s, err := d.toyDriver.Open(ctx, dev)
	if err != nil {
		return nil, err
	}
	return brokenToy{s.(*toyDevice)}, nil
}

func (brokenToy) Nearest(_, value string) (string, error) { panic("no scale for " + value) }

func TestADriverThatPanicsRounding(t *testing.T) {
	n := newNode(t)
	d := brokenRounder{newToys("lamp")}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	n.applied("lamp", "level", "5", n.want("lamp", "level", "5"))
	n.applied("lamp", "level", "6", n.want("lamp", "level", "6"))
	require.NotContains(t, n.published("devices/lamp/state"), "offline")
}

// A device answers, but what stands behind it doesn't: its values say so.
func TestADeviceIsOnlineByItsValuesIfItsModelSaysSo(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	m := toyModel(nil)
	m.Spec.PropertyVisitors = append(m.Spec.PropertyVisitors, resource.ProtocolVisitors{
		Protocol: "toy", Online: &resource.OnlineRule{When: []resource.OnlineValue{{PropertyName: "power", Values: []resource.Value{"ON"}}}},
	})
	n.attach("lamp", "toy", nil, m)
	n.run(d, func(o *Options) { o.OfflineAfter = 100 * time.Millisecond })
	n.eventually("devices/lamp/state", "offline")
	problem, _ := n.at("devices/lamp/problem")
	require.Contains(t, problem, `"code":"SaysOffline","message":"it answers, and is not online by its values: power is OFF"`)
	d.toys["lamp"].set("power", "ON")
	n.eventually("devices/lamp/state", "online")
	d.toys["lamp"].set("power", "OFF")
	n.eventually("devices/lamp/state", "offline")
	require.NotContains(t, n.published("devices/lamp/reported/power"), "", "values go on")
}
