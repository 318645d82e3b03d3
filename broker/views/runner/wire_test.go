// SPDX-License-Identifier: Apache-2.0

package runner_test

import (
	"context"
	"encoding/json"
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

// The packets of an edge node's connection are those that the specification demands: a clean start without a session, subscriptions to commands at
// QoS 1 before the birth, and at the end its death and a DISCONNECT that asks for the will.
func TestAnEdgeNodeOnTheWire(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	device, err := json.Marshal(viewtest.Devices()[0])
	require.NoError(t, err)
	topic := "v1/nodes/" + viewtest.Node + "/devices/lamp"
	tree := []broker.Message{{Topic: topic, Payload: device}, {Topic: topic + "/reported/power", Payload: []byte("ON")}, {Topic: topic + "/state", Payload: []byte("online")}}
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
	}, []runner.View{{
		Name: "sparkplug", PerNode: true, Place: "there", Settings: json.RawMessage("{}"), Peer: runner.Peer{Server: "mqtt://" + listener.Addr().String()},
		New: func(node string) views.View { return sparkplug.New(sparkplug.Options{Group: "plant", EdgeNode: node}) },
	}})
	require.NoError(t, err)
	for _, m := range tree {
		v.Follow(m)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()

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
