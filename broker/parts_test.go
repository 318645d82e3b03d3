// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

const partsTopic = "v1/nodes/n1/sync/parts"

// cutInParts makes the n parts of a message.
func cutInParts(t *testing.T, id, topic, payload string, n int) (parts []string) {
	t.Helper()
	size := len(payload) / n
	for i := range n {
		p := link.MessagePart{ID: []byte(id), Size: len(payload), Offset: i * size, Content: []byte(payload[i*size:])}
		if i < n-1 {
			p.Content = p.Content[:size]
		} else {
			p.Topic = topic
		}
		b, err := link.EncodeMessagePart(p)
		require.NoError(t, err)
		parts = append(parts, string(b))
	}
	return parts
}

// A message in parts outlives the connection on which they began; it is published when the last has come, once, with its properties.
func TestAMessageInPartsGoesOnOnTheNextConnection(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, func(o *Options) { o.Tree = tree })
	const topic = "v1/nodes/n1/bridge/x"
	payload := strings.Repeat("payload ", 1000)
	parts := cutInParts(t, "one", topic, payload, 4)
	core := openClient(t, b, "node/n1", credentialsOf("node/n1", ""))
	for _, part := range []string{parts[0], parts[1], parts[1]} {
		require.Zero(t, core.publish1(partsTopic, part).ReasonCode)
	}
	core.leave(b, "node/n1")
	require.Empty(t, tree.got)
	require.NotZero(t, b.quotas.unfinished.Held())

	core = openClient(t, b, "node/n1", credentialsOf("node/n1", ""))
	require.Equal(t, byte(0x83), core.publish1(partsTopic, parts[3]).ReasonCode, "one is missing")
	require.Zero(t, core.publish1(partsTopic, parts[2]).ReasonCode)
	text := func(pk *packets.Packet) { pk.Properties.PayloadFormat, pk.Properties.PayloadFormatFlag = 1, true }
	require.Zero(t, core.publish1(partsTopic, parts[3], text).ReasonCode)
	require.Zero(t, core.publish1(partsTopic, parts[3], text).ReasonCode, "its acknowledgement was lost")
	require.Len(t, tree.got, 1)
	require.Equal(t, topic, tree.got[0].Topic)
	require.Equal(t, payload, string(tree.got[0].Payload))
	require.Equal(t, byte(1), *tree.got[0].Props.PayloadFormat)
	require.Eventually(t, func() bool { return b.quotas.unfinished.Held() == partialMessageCost }, time.Minute, time.Millisecond)
}

// In parts a node publishes where it may publish, and no more than limits.packet.
func TestAMessageInPartsHasTheRightsAndLimitsOfAnyOther(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, func(o *Options) { o.Tree, o.Limits.Packet = tree, 100_000 })
	core := openClient(t, b, "node/n1", credentialsOf("node/n1", ""))
	for _, c := range []struct {
		topic, payload string
		code           byte
	}{
		{"v1/nodes/n2/bridge/x", "of another node", 0x87},
		{"users/own", "outside of the tree", 0x87},
		{"v1/nodes/n1/bridge/+", "no topic", 0x90},
		{"v1/nodes/n1/bridge/x", strings.Repeat("x", 110_000), 0x97},
	} {
		parts := cutInParts(t, c.topic, c.topic, c.payload, 2)
		code := core.publish1(partsTopic, parts[0]).ReasonCode
		if code == 0 {
			code = core.publish1(partsTopic, parts[1]).ReasonCode
		}
		require.Equal(t, c.code, code, c.topic)
	}
	require.Equal(t, byte(0x99), core.publish1(partsTopic, "no part").ReasonCode)
	second := openClient(t, b, "node/n1/tool", credentialsOf("node/n1", ""))
	require.Equal(t, byte(0x87), second.publish1(partsTopic, "x").ReasonCode, "it is the link's alone")
	require.Empty(t, tree.got)
}

// What never becomes whole is forgotten, and nodes share the memory for it.
func TestUnfinishedMessagesAreBounded(t *testing.T) {
	now := time.Now()
	q := quota.NewShared("bytes", "user", quota.Limit{Most: 100_000})
	p := newPartialMessages(1<<20, q, func() time.Time { return now })
	take := func(node, id string) error {
		b, err := link.EncodeMessagePart(link.MessagePart{ID: []byte(id), Size: 1 << 20, Content: bytes.Repeat([]byte("x"), 60_000)})
		require.NoError(t, err)
		_, err = p.take(&Message{Topic: "v1/nodes/" + node + "/sync/parts", Payload: b, Publisher: &Identity{User: "node/" + node, Roles: []topics.Role{topics.RoleNode}}})
		return err
	}
	require.NoError(t, take("n1", "a"))
	require.NoError(t, take("n1", "b"), "a new message takes the place of the old one")
	require.EqualValues(t, 60_000+partialMessageCost, q.Held())
	require.ErrorContains(t, take("n2", "a"), "bytes")
	now = now.Add(partialLifetime + time.Minute)
	require.NoError(t, take("n2", "b"))
	require.EqualValues(t, 60_000+partialMessageCost, q.Held())
}

// A node's core gets large messages in parts if it says so; who else says it, gets them whole.
func TestOnlyACoreThatAsksForPartsGetsThem(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Tree, o.Down = newFakeTree(), []string{"#"} })
	inParts := func(pk *packets.Packet) {
		pk.Properties.User = append(pk.Properties.User, packets.UserProperty{Key: link.PropParts, Val: "here"})
	}
	cores := map[string]*testClient{
		"parts": openClient(t, b, "node/n1", credentialsOf("node/n1", ""), inParts),
		"whole": openClient(t, b, "node/n2", credentialsOf("node/n2", "")),
		"user":  openClient(t, b, "anybody", inParts),
	}
	for _, c := range cores {
		require.Less(t, c.subscribe("down/#", 1).ReasonCodes[0], byte(0x80))
	}
	payload := strings.Repeat("payload ", 5000)
	publisher := openClient(t, b, "publisher")
	require.Zero(t, publisher.publish1("down/x", payload).ReasonCode)
	for _, name := range []string{"whole", "user"} {
		require.Equal(t, payload, string(cores[name].expect(packets.Publish).Payload), name)
	}
	got := cores["parts"].expect(packets.Publish)
	require.Equal(t, partsTopic, got.TopicName)
	p, err := link.DecodeMessagePart(got.Payload)
	require.NoError(t, err)
	require.Equal(t, len(payload), p.Size)
}
