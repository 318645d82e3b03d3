// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopcua/opcua/id"
	"github.com/gopcua/opcua/server"
	"github.com/gopcua/opcua/ua"
	"github.com/gopcua/opcua/uasc"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
)

// playedServer is a server of gopcua's whose variables temperature-N and level-N are of the N-th device, which has habits. One serves all rows
// of the suite: it takes long to start, and can't be ended.
type playedServer struct {
	*drivertest.HabitPlay
	server  *server.Server
	proxies []*cutProxy              // of each device
	closing [mostDevices]atomic.Bool // the connection of each ends once an answer has passed
	next    atomic.Int32
	later   []laterChange // used by the server's goroutine only
}

// laterChange is a write that has its effect with the first request after a time.
type laterChange struct {
	at    time.Time
	apply func()
}

// mostDevices are those of all rows.
const mostDevices = 50

func newPlayedServer(t *testing.T) *playedServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &playedServer{HabitPlay: drivertest.NewHabitPlay()}
	options := []server.Option{
		server.EndPoint("127.0.0.1", l.Addr().(*net.TCPAddr).Port), server.EnableSecurity("None", ua.MessageSecurityModeNone),
		server.EnableAuthMode(ua.UserTokenTypeAnonymous),
	}
	for n := range mostDevices {
		proxy := &cutProxy{t: t, addr: "127.0.0.1:0", target: l.Addr().String(), muted: func() bool { return p.Has(n, drivertest.HabitDead) }, last: func() bool { return p.closing[n].Swap(false) }}
		proxy.Start()
		t.Cleanup(func() { proxy.stop() })
		_, port, err := net.SplitHostPort(proxy.addr)
		require.NoError(t, err)
		seen, err := strconv.Atoi(port)
		require.NoError(t, err)
		options, p.proxies = append(options, server.EndPoint("127.0.0.1", seen)), append(p.proxies, proxy)
	}
	p.server = server.New(options...)
	ns := server.NewNodeNameSpace(p.server, "http://test/devices")
	for n := range mostDevices {
		for name, value := range map[string]any{"temperature": 21.5, "level": int32(7)} {
			ns.AddNewVariableStringNode(name+"-"+strconv.Itoa(n), value)
		}
	}
	p.server.RegisterHandler(id.ReadRequest_Encoding_DefaultBinary, p.read)
	p.server.RegisterHandler(id.WriteRequest_Encoding_DefaultBinary, p.write)
	require.NoError(t, l.Close()) // it kept the port until all others had theirs
	require.NoError(t, p.server.Start(context.Background()))
	return p
}

// applyLater makes the changes whose time has come.
func (p *playedServer) applyLater() {
	p.later = slices.DeleteFunc(p.later, func(c laterChange) bool {
		due := !time.Now().Before(c.at)
		if due {
			c.apply()
		}
		return due
	})
}

// playedNode is which device a node is of; -1: it is of the server. first says that it is the device's first property.
func playedNode(node *ua.NodeID) (n int, first bool) {
	name, number, _ := strings.Cut(node.StringID(), "-")
	n, err := strconv.Atoi(number)
	if err != nil || node.Namespace() != 1 {
		return -1, false
	}
	return n, name == "temperature"
}

func answerHeader(request uint32) *ua.ResponseHeader {
	return &ua.ResponseHeader{
		Timestamp: time.Now(), RequestHandle: request, ServiceDiagnostics: &ua.DiagnosticInfo{}, StringTable: []string{}, AdditionalHeader: ua.NewExtensionObject(nil),
	}
}

func (p *playedServer) read(channel *uasc.SecureChannel, r ua.Request, request uint32) (ua.Response, error) {
	p.applyLater()
	q := r.(*ua.ReadRequest)
	n, first := playedNode(q.NodesToRead[0].NodeID)
	var played drivertest.PlayedRequest
	if n >= 0 {
		played = p.Request(n, first, false)
	}
	answer := &ua.ReadResponse{ResponseHeader: answerHeader(q.RequestHeader.RequestHandle)}
	for _, node := range q.NodesToRead {
		status := ua.StatusOK
		switch n, first := playedNode(node.NodeID); {
		case played.Stranger:
			status = ua.StatusBadNoCommunication
		case played.Ignored: // a server says so of a node that is silent
			status = ua.StatusBadTimeout
		case n >= 0 && first && p.Has(n, drivertest.HabitNoValue):
			status = ua.StatusBadWaitingForInitialData
		}
		if status != ua.StatusOK {
			answer.Results = append(answer.Results, &ua.DataValue{EncodingMask: ua.DataValueStatusCode, Status: status})
			continue
		}
		ns, err := p.server.Namespace(int(node.NodeID.Namespace()))
		if err != nil {
			return nil, ua.StatusBadNodeIDUnknown
		}
		answer.Results = append(answer.Results, ns.Attribute(node.NodeID, node.AttributeID))
	}
	return p.answer(n, played, channel, request, answer)
}

func (p *playedServer) write(channel *uasc.SecureChannel, r ua.Request, request uint32) (ua.Response, error) {
	q := r.(*ua.WriteRequest)
	value := q.NodesToWrite[0]
	n, _ := playedNode(value.NodeID)
	played := p.Request(n, false, true)
	answer := &ua.WriteResponse{ResponseHeader: answerHeader(q.RequestHeader.RequestHandle), Results: []ua.StatusCode{ua.StatusOK}, DiagnosticInfos: []*ua.DiagnosticInfo{}}
	ns, err := p.server.Namespace(1)
	switch {
	case err != nil:
		return nil, ua.StatusBadNodeIDUnknown
	case played.Stranger:
		answer.Results[0] = ua.StatusBadNoCommunication
	case played.Ignored, played.Busy:
	case played.Late:
		p.later = append(p.later, laterChange{time.Now().Add(drivertest.ReadLater), func() { ns.SetAttribute(value.NodeID, value.AttributeID, value.Value) }})
	default:
		answer.Results[0] = ns.SetAttribute(value.NodeID, value.AttributeID, value.Value)
	}
	return p.answer(n, played, channel, request, answer)
}

// answer gives a request its answer: none, a fault, or this one, which may take a while. The server's other clients don't wait for it.
func (p *playedServer) answer(n int, played drivertest.PlayedRequest, channel *uasc.SecureChannel, request uint32, answer ua.Response) (ua.Response, error) {
	if played.Closes {
		p.closing[n].Store(true)
	}
	switch {
	case played.Lost:
		return nil, nil
	case played.Busy:
		return nil, ua.StatusBadTCPServerTooBusy
	case played.Delay > 0:
		time.AfterFunc(played.Delay, func() { _ = channel.SendResponseWithContext(context.Background(), request, answer) })
		return nil, nil
	}
	return answer, nil
}

func TestTheHabitsOfAllProtocols(t *testing.T) {
	p := newPlayedServer(t)
	drivertest.RunHabits(t, func(t *testing.T) drivertest.HabitRig {
		numbers := map[int]int{} // of a row's devices among those of all
		return drivertest.HabitRig{
			Driver: newDriver(t),
			Device: func(n int) mappers.Device {
				if _, ok := numbers[n]; !ok {
					numbers[n] = int(p.next.Add(1)) - 1
				}
				number := strconv.Itoa(numbers[n])
				low, high := 0.0, 100.0
				level := newProperty("level", mappers.Int, true, "ns=1;s=level-"+number)
				level.Minimum, level.Maximum, level.Collect = &low, &high, 0
				temperature := newProperty("temperature", mappers.Double, false, "ns=1;s=temperature-"+number)
				temperature.Collect = 0
				return mappers.Device{
					Name: "device-" + number, Properties: []mappers.Property{temperature, level},
					OfflineAfter: 1500 * time.Millisecond, // each fresh connection takes several requests, which a busy machine answers slowly
					// No subscriptions: gopcua's server panics when the connection of one ends while it is made.
					Config: map[string]string{"endpoint": "opc.tcp://" + p.proxies[numbers[n]].addr, "maxNodes": "1", "timeout": "700ms", "publishingInterval": "0s"},
				}
			},
			Set:   func(n int, habit drivertest.DeviceHabit, on bool) { p.Set(numbers[n], habit, on) },
			Wrote: func(n int) int { return p.Wrote(numbers[n]) },
		}
	})
}
