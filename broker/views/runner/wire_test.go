// SPDX-License-Identifier: Apache-2.0

package runner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/broker/views/homeassistant"
	"github.com/edgebus/edgebus/broker/views/runner"
	"github.com/edgebus/edgebus/broker/views/sparkplug"
	"github.com/edgebus/edgebus/broker/views/viewtest"
	payload "github.com/edgebus/edgebus/topics/sparkplug"
)

// wirePeer is the end of a broker, packet by packet.
type wirePeer struct {
	t    *testing.T
	conn net.Conn
}

func (p wirePeer) read() *packets.ControlPacket {
	p.t.Helper()
	for {
		require.NoError(p.t, p.conn.SetReadDeadline(time.Now().Add(20*time.Second)))
		cp, err := packets.ReadPacket(p.conn)
		require.NoError(p.t, err)
		if cp.Type != packets.PINGREQ {
			return cp
		}
	}
}

func (p wirePeer) send(c io.WriterTo) {
	p.t.Helper()
	_, err := c.WriteTo(p.conn)
	require.NoError(p.t, err)
}

// publish reads a PUBLISH, and acknowledges it.
func (p wirePeer) publish() *packets.Publish {
	p.t.Helper()
	m, ok := p.read().Content.(*packets.Publish)
	require.True(p.t, ok)
	if m.QoS == 1 {
		p.send(&packets.Puback{PacketID: m.PacketID, Properties: &packets.Properties{}})
	}
	return m
}

// runViews runs views of a tree that doesn't change.
func runViews(t *testing.T, tree []broker.Message, list ...runner.View) (stop func(), ended chan error) {
	t.Helper()
	v, err := runner.New(runner.Options{
		Node: viewtest.Node, Dir: t.TempDir(), Log: zerolog.Nop(),
		Dial: func(broker.Identity) net.Conn { // nothing is wanted of the tree
			conn, other := net.Pipe()
			_ = other.Close()
			return conn
		},
		Retained: func(filter string) func(int) []broker.Message {
			list := tree
			if !strings.HasSuffix(filter, "/devices/#") {
				list = nil
			}
			return func(int) (batch []broker.Message) {
				batch, list = list, nil
				return batch
			}
		},
	}, list)
	require.NoError(t, err)
	for _, m := range tree {
		v.Follow(m)
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	ended = make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	return stop, ended
}

func sparkplugView(at net.Listener, host string) runner.View {
	return runner.View{
		Name: "sparkplug", PerNode: true, Place: "there", Settings: json.RawMessage("{}"), Peer: runner.Peer{Server: "mqtt://" + at.Addr().String()},
		New: func(node string) views.View {
			return sparkplug.New(sparkplug.Options{Group: "plant", EdgeNode: node, PrimaryHost: host})
		},
	}
}

// lampMessages are the tree's messages of a Device.
func lampMessages(t *testing.T, name string) []broker.Message {
	t.Helper()
	b := viewtest.Devices()[0]
	b.Device.Metadata.Name = name
	device, err := json.Marshal(b)
	require.NoError(t, err)
	topic := "v1/nodes/" + viewtest.Node + "/devices/" + name
	return []broker.Message{{Topic: topic, Payload: device}, {Topic: topic + "/reported/power", Payload: []byte("ON")}, {Topic: topic + "/state", Payload: []byte("online")}}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// acceptView takes a connection, and grants what it subscribes to.
func acceptView(t *testing.T, listener net.Listener) wirePeer {
	t.Helper()
	conn, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	p := wirePeer{t, conn}
	p.read()
	p.send(&packets.Connack{Properties: &packets.Properties{}})
	subscribe, ok := p.read().Content.(*packets.Subscribe)
	require.True(t, ok)
	p.send(&packets.Suback{PacketID: subscribe.PacketID, Reasons: make([]byte, len(subscribe.Subscriptions)), Properties: &packets.Properties{}})
	return p
}

func endsSoon(t *testing.T, ended chan error) {
	t.Helper()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		require.FailNow(t, "the views have not ended")
	}
}

// A broker that answers nothing but what keeps a connection alive doesn't keep the program from ending.
func TestAViewEndsAtABrokerThatAcknowledgesNothing(t *testing.T) {
	listener := listen(t)
	var tree []broker.Message
	for i := range 200 {
		tree = append(tree, lampMessages(t, fmt.Sprint("lamp-", i))...)
	}
	stop, ended := runViews(t, tree, runner.View{
		Name: "ha", Place: "there", Settings: json.RawMessage("{}"), Peer: runner.Peer{Server: "mqtt://" + listener.Addr().String()},
		New: func(string) views.View {
			return homeassistant.New(homeassistant.Options{Instance: viewtest.Node, Prefix: "homeassistant", Base: "edgebus"})
		},
	})
	p := acceptView(t, listener)
	for range 256 { // then it waits
		p.read()
	}
	stop()
	endsSoon(t, ended)
}

// What a peer sends while the view begins its next connection holds up neither that nor the program's end.
func TestAStormOfCommandsHoldsUpNoReconnect(t *testing.T) {
	listener := listen(t)
	stop, ended := runViews(t, lampMessages(t, "lamp"), sparkplugView(listener, "scada"))
	p := acceptView(t, listener)
	state := func(text string) *packets.Publish {
		return &packets.Publish{Topic: "spBv1.0/STATE/scada", Payload: []byte(text), Properties: &packets.Properties{}}
	}
	p.send(state(`{"online":true,"timestamp":1}`))
	require.Equal(t, "spBv1.0/plant/NBIRTH/n1", p.publish().Topic)
	p.send(state(`{"online":false,"timestamp":2}`))
	for range 1000 {
		p.send(&packets.Publish{Topic: "spBv1.0/plant/DCMD/n1/lamp", Payload: []byte{1}, Properties: &packets.Properties{}})
	}
	acceptView(t, listener)
	stop()
	endsSoon(t, ended)
}

// The packets of an edge node's connection are those that the specification demands: a clean start without a session, subscriptions to commands at
// QoS 1 before the birth, and at the end its death and a DISCONNECT that asks for the will.
func TestAnEdgeNodeOnTheWire(t *testing.T) {
	listener, tree := listen(t), lampMessages(t, "lamp")
	stop, ended := runViews(t, tree, sparkplugView(listener, ""))

	for n, session := range []string{"0", "1"} {
		conn, err := listener.Accept()
		require.NoError(t, err)
		p := wirePeer{t, conn}
		connect, ok := p.read().Content.(*packets.Connect)
		require.True(t, ok)
		require.True(t, connect.CleanStart)
		require.True(t, connect.Properties.SessionExpiryInterval == nil || *connect.Properties.SessionExpiryInterval == 0)
		require.True(t, connect.WillFlag)
		require.EqualValues(t, 1, connect.WillQOS)
		require.False(t, connect.WillRetain)
		require.Equal(t, "spBv1.0/plant/NDEATH/n1", connect.WillTopic)
		will, err := payload.Parse(connect.WillMessage)
		require.NoError(t, err)
		text, err := will.Metrics[0].Text(payload.TypeUnspecified)
		require.NoError(t, err)
		require.Equal(t, session, text)
		p.send(&packets.Connack{Properties: &packets.Properties{}})

		subscribe, ok := p.read().Content.(*packets.Subscribe)
		require.True(t, ok, "it subscribes before anything is published")
		filters := map[string]byte{}
		for _, s := range subscribe.Subscriptions {
			filters[s.Topic] = s.QoS
		}
		require.Equal(t, map[string]byte{"spBv1.0/plant/NCMD/n1": 1, "spBv1.0/plant/DCMD/n1/+": 1}, filters)
		p.send(&packets.Suback{PacketID: subscribe.PacketID, Reasons: []byte{1, 1}, Properties: &packets.Properties{}})
		for _, want := range []string{"NBIRTH/n1", "DBIRTH/n1/lamp"} {
			m := p.publish()
			require.Equal(t, "spBv1.0/plant/"+want, m.Topic)
			require.Zero(t, m.QoS)
			require.False(t, m.Retain)
		}
		if n == 0 { // the connection is lost
			require.NoError(t, conn.Close())
			continue
		}
		stop()
		death := p.publish()
		require.Equal(t, "spBv1.0/plant/NDEATH/n1", death.Topic)
		require.Equal(t, connect.WillMessage, death.Payload)
		end, ok := p.read().Content.(*packets.Disconnect)
		require.True(t, ok)
		require.EqualValues(t, packets.DisconnectDisconnectWithWillMessage, end.ReasonCode)
	}
	require.NoError(t, <-ended)
}
