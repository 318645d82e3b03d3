// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/gopcua/opcua/id"
	"github.com/gopcua/opcua/server"
	"github.com/gopcua/opcua/ua"
	"github.com/gopcua/opcua/uasc"
	"github.com/gosnmp/gosnmp"

	"github.com/edgebus/edgebus/broker/client"
	bacnet "github.com/edgebus/edgebus/mappers/bacnet/wire"
	modbus "github.com/edgebus/edgebus/mappers/modbus/wire"
	"github.com/edgebus/edgebus/topics/resource"
)

// polledNumber is what the p-th property of a device is at a poll: always another.
func polledNumber(p int) int64 { return time.Now().UnixMilli()/100 + int64(p) }

// serveDevices starts the devices one by one; start gives a device's address, and what ends it.
func serveDevices(start func(d int) (string, func(), error)) (addresses []string, stop func(), err error) {
	var ends []func()
	stop = func() {
		for _, end := range ends {
			end()
		}
	}
	for d := range polledDevices {
		address, end, err := start(d)
		if err != nil {
			stop()
			return nil, nil, err
		}
		addresses, ends = append(addresses, address), append(ends, end)
	}
	return addresses, stop, nil
}

// serveSilence takes connections and answers nothing.
func serveSilence() (string, func(), error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go func() {
		var open []net.Conn // as long as the listener
		for {
			c, err := l.Accept()
			if err != nil {
				for _, c := range open {
					_ = c.Close()
				}
				return
			}
			open = append(open, c)
		}
	}()
	return l.Addr().String(), func() { _ = l.Close() }, nil
}

func pollConfig(pairs ...string) map[string]resource.Value {
	out := map[string]resource.Value{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = resource.Value(pairs[i+1])
	}
	return out
}

const pollFirst = 100 // register of the first property

func serveModbusPolls(clock *pollClock) (polledPeers, error) {
	addresses, stop, err := serveDevices(func(d int) (string, func(), error) {
		s := &modbus.Server{Handle: func(c modbus.Call) ([]uint16, error) {
			if c.Address == pollFirst && c.Quantity == polledTags {
				clock.poll(d)
			}
			out := make([]uint16, c.Quantity)
			for i := range out {
				out[i] = uint16(polledNumber(i))
			}
			return out, nil
		}}
		if d == deadPolled {
			s.Before = func(r *modbus.Reply) { r.Silent = true }
		}
		err := s.Listen("127.0.0.1:0")
		return s.Addr(), func() { _ = s.Close() }, err
	})
	return polledPeers{
		device: func(d int) map[string]resource.Value { return pollConfig("address", addresses[d]) },
		property: func(_, p int) map[string]resource.Value {
			return pollConfig("register", "holding", "address", strconv.Itoa(pollFirst+p), "type", "uint16")
		},
		stop: stop,
	}, err
}

// serveOPCUAPolls has one server for all devices, each with nodes and a session of its own: one for each would take a core by themselves.
func serveOPCUAPolls(clock *pollClock, subscribed bool) (polledPeers, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return polledPeers{}, err
	}
	address := l.Addr().String()
	_ = l.Close()
	s := server.New(server.EndPoint("127.0.0.1", l.Addr().(*net.TCPAddr).Port), server.EnableSecurity("None", ua.MessageSecurityModeNone),
		server.EnableAuthMode(ua.UserTokenTypeAnonymous))
	ns := server.NewNodeNameSpace(s, "urn:bench")
	for d := range polledDevices {
		for p := range polledTags {
			ns.AddNewVariableStringNode(fmt.Sprintf("%d-%d", d, p), polledNumber(p))
		}
	}
	if !subscribed {
		s.RegisterHandler(id.ReadRequest_Encoding_DefaultBinary, func(_ *uasc.SecureChannel, r ua.Request, _ uint32) (ua.Response, error) {
			return answerOPCUAPoll(clock, s, r.(*ua.ReadRequest))
		})
	}
	if err := s.Start(context.Background()); err != nil {
		return polledPeers{}, err
	}
	dead, stop, err := serveSilence()
	return polledPeers{
		device: func(d int) map[string]resource.Value {
			c := pollConfig("endpoint", "opc.tcp://"+address)
			if d == deadPolled {
				c = pollConfig("endpoint", "opc.tcp://"+dead)
			}
			if !subscribed {
				c["publishingInterval"] = "0s"
			}
			return c
		},
		property: func(d, p int) map[string]resource.Value { return pollConfig("node", fmt.Sprintf("ns=1;s=%d-%d", d, p)) },
		tell: func(_ *clientConnection, d int, now time.Time) {
			for p := range polledTags {
				node := ua.NewStringNodeID(1, fmt.Sprintf("%d-%d", d, p))
				_ = ns.SetAttribute(node, ua.AttributeIDValue, server.DataValueFromValue(now.UnixMilli()+int64(p)))
			}
		},
		stop: stop, // the server can't be ended
	}, err
}

func answerOPCUAPoll(clock *pollClock, s *server.Server, q *ua.ReadRequest) (ua.Response, error) {
	answer := &ua.ReadResponse{ResponseHeader: &ua.ResponseHeader{
		Timestamp: time.Now(), RequestHandle: q.RequestHeader.RequestHandle, ServiceDiagnostics: &ua.DiagnosticInfo{}, StringTable: []string{},
		AdditionalHeader: ua.NewExtensionObject(nil),
	}}
	for _, node := range q.NodesToRead {
		device, property, ours := strings.Cut(node.NodeID.StringID(), "-")
		if !ours || node.NodeID.Namespace() != 1 {
			ns, err := s.Namespace(int(node.NodeID.Namespace()))
			if err != nil {
				return nil, ua.StatusBadNodeIDUnknown
			}
			answer.Results = append(answer.Results, ns.Attribute(node.NodeID, node.AttributeID))
			continue
		}
		d, _ := strconv.Atoi(device)
		p, _ := strconv.Atoi(property)
		if p == 0 {
			clock.poll(d)
		}
		answer.Results = append(answer.Results, server.DataValueFromValue(polledNumber(p)))
	}
	return answer, nil
}

func serveSNMPPolls(clock *pollClock) (polledPeers, error) {
	addresses, stop, err := serveDevices(func(d int) (string, func(), error) {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return "", nil, err
		}
		go func() {
			b := make([]byte, 65536)
			for {
				n, from, err := conn.ReadFromUDP(b)
				if err != nil {
					return
				}
				decoder := gosnmp.GoSNMP{Version: gosnmp.Version2c}
				packet, err := decoder.SnmpDecodePacket(b[:n])
				if err != nil || d == deadPolled {
					continue
				}
				if len(packet.Variables) == polledTags {
					clock.poll(d)
				}
				packet.PDUType = gosnmp.GetResponse
				for i := range packet.Variables {
					packet.Variables[i].Type, packet.Variables[i].Value = gosnmp.Counter32, uint32(polledNumber(i))
				}
				if out, err := packet.MarshalMsg(); err == nil {
					_, _ = conn.WriteToUDP(out, from)
				}
			}
		}()
		return conn.LocalAddr().String(), func() { _ = conn.Close() }, nil
	})
	return polledPeers{
		device:   func(d int) map[string]resource.Value { return pollConfig("address", addresses[d]) },
		property: func(_, p int) map[string]resource.Value { return pollConfig("oid", fmt.Sprintf("1.3.9.%d.0", p+1)) },
		stop:     stop,
	}, err
}

func serveBACnetPolls(clock *pollClock) (polledPeers, error) {
	addresses, stop, err := serveDevices(func(d int) (string, func(), error) {
		objects := map[bacnet.ObjectID]*bacnet.ServerObject{}
		for p := range polledTags {
			objects[bacnet.NewObjectID(bacnet.AnalogInput, uint32(p))] = &bacnet.ServerObject{Properties: map[bacnet.PropertyID][]any{
				bacnet.ObjectName: {fmt.Sprint(p)}, bacnet.PresentValue: {float32(0)}, bacnet.StatusFlags: {bacnet.BitString{false, false, false, false}},
			}}
		}
		s, err := bacnet.NewServer("127.0.0.1:0", uint32(d+1), objects)
		if err != nil {
			return "", nil, err
		}
		s.Play(func(r bacnet.ServerRequest) bacnet.ServerAnswer {
			if r.Object == bacnet.NewObjectID(bacnet.AnalogInput, 0) && d != deadPolled {
				clock.poll(d)
				go func() { // what the next poll reads; the server is held while this one is answered
					for p := range polledTags {
						s.SetProperty(bacnet.NewObjectID(bacnet.AnalogInput, uint32(p)), bacnet.PresentValue, float32(polledNumber(p)%100000))
					}
				}()
			}
			return bacnet.ServerAnswer{Ignored: d == deadPolled}
		})
		return s.Addr().String(), func() { _ = s.Close() }, nil
	})
	return polledPeers{
		device:   func(d int) map[string]resource.Value { return pollConfig("address", addresses[d], "cov", "false") },
		property: func(_, p int) map[string]resource.Value { return pollConfig("object", fmt.Sprintf("AI:%d", p)) },
		stop:     stop,
	}, err
}

func serveHTTPPolls(clock *pollClock) (polledPeers, error) {
	addresses, stop, err := serveDevices(func(d int) (string, func(), error) {
		if d == deadPolled {
			return serveSilence()
		}
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			clock.poll(d)
			_, _ = w.Write(polledJSON(polledNumber(0)))
		}))
		return s.Listener.Addr().String(), s.Close, nil
	})
	return polledPeers{
		device: func(d int) map[string]resource.Value { return pollConfig("url", "http://"+addresses[d]) },
		property: func(_, p int) map[string]resource.Value {
			return pollConfig("get", "/status", "path", fmt.Sprintf("p%d", p))
		},
		stop: stop,
	}, err
}

// polledJSON has all values of a device.
func polledJSON(first int64) []byte {
	b := []byte("{")
	for p := range polledTags {
		b = fmt.Appendf(b, `"p%d":%d,`, p, first+int64(p))
	}
	return append(b[:len(b)-1], '}')
}

func serveMQTTPolls(*pollClock) (polledPeers, error) {
	return polledPeers{
		device: func(d int) map[string]resource.Value { return pollConfig("topic", fmt.Sprintf("bench/d%d", d)) },
		property: func(_, p int) map[string]resource.Value {
			return pollConfig("state", "{topic}/state", "path", fmt.Sprintf("p%d", p))
		},
		tell: func(core *clientConnection, d int, now time.Time) {
			core.PublishAsync(client.Message{Topic: fmt.Sprintf("bench/d%d/state", d), Payload: polledJSON(now.UnixMilli()), QoS: 1}, nil)
		},
		stop: func() {},
	}, nil
}
