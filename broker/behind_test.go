package broker

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
)

// While more waits for the disk than may, those wait who would add to it, and nobody else.
func TestOnlyWhoStoresWaitsForTheDisk(t *testing.T) {
	b, _ := kept(t, t.TempDir(), func(o *Options) { o.Tree = newFakeTree() })
	away, live, pub := open(t, b, "away", persistent), open(t, b, "live"), open(t, b, "pub")
	stored := []*tc{open(t, b, "one"), open(t, b, "two"), open(t, b, "three", persistent)}
	away.sub("kept", 1)
	away.leave(b, "away")
	live.sub("#", 1)

	disk := b.store.begin([]journal.Change{{Value: make([]byte, backlogBytes()+1)}}, func(error) {})
	caughtUp := sync.OnceFunc(func() { disk.tell(b.store, nil) })
	t.Cleanup(caughtUp) // or the broker can't stop
	require.True(t, b.store.behind())

	require.Equal(t, byte(0), pub.publish1("live", "1", props(packets.Properties{ContentType: "x"})).ReasonCode)
	pub.publish("kept", "2", 0, 0, props(packets.Properties{ContentType: "x"}))
	require.Equal(t, []string{"1", "2"}, live.collect(2))
	require.Equal(t, byte(0), pub.publish1("v1/nodes/n1/devices/d/reported/a", "3").ReasonCode)
	require.Equal(t, byte(0x87), pub.publish1("v1/nodes/n1/sync/up", "4").ReasonCode)

	stored[0].publish("kept", "5", 1, 1)
	stored[1].publish("live", "6", 1, 1, retain)
	stored[2].publish("live", "7", 2, 1)
	for _, c := range stored {
		_ = c.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := c.r.Peek(1)
		require.Error(t, err, "it waits")
	}
	live.nothing()
	caughtUp()
	stored[0].expect(packets.Puback)
	stored[1].expect(packets.Puback)
	stored[2].expect(packets.Pubrec)
	require.ElementsMatch(t, []string{"5", "6", "7"}, live.collect(3))
}

// A tree that can't commit holds up who publishes much into it, and not who publishes little.
func TestTheTreesBacklogIsBounded(t *testing.T) {
	tree := newFakeTree()
	b, _ := kept(t, t.TempDir(), func(o *Options) { o.Tree = tree })
	tree.hold()
	b.asked.most = 1 << 20
	const value, most = 100 << 10, 1<<20/(100<<10) + 1
	many, few := open(t, b, "many"), open(t, b, "few")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range 2 * most {
			many.publish("v1/nodes/n1/devices/d/reported/a", strings.Repeat("x", value), 1, uint16(i+1))
		}
	}()
	got := func() int { tree.mu.Lock(); defer tree.mu.Unlock(); return len(tree.got) }
	require.Eventually(t, func() bool { return got() == most }, 30*time.Second, time.Millisecond)
	few.publish("v1/nodes/n1/devices/d/reported/b", "1", 1, 1)
	require.Eventually(t, func() bool { return got() == most+1 }, 30*time.Second, time.Millisecond)
	time.Sleep(20 * time.Millisecond) // for what must not happen
	require.Equal(t, most+1, got())
	tree.letGo()
	few.expect(packets.Puback)
	for range 2 * most {
		many.expect(packets.Puback)
	}
	<-sent
	require.Zero(t, b.asked.waiting())
}

// Whose connection is over waits no longer for room: its place is another's.
func TestNobodyWaitsBeyondTheEndOfTheConnection(t *testing.T) {
	tree := newFakeTree()
	b, _ := kept(t, t.TempDir(), func(o *Options) { o.Tree = tree })
	tree.hold()
	t.Cleanup(tree.letGo)
	b.asked.most = 1 << 10
	c := open(t, b, "writer")
	for id := range uint16(2) {
		c.publish("v1/nodes/n1/devices/d/reported/a", strings.Repeat("x", large), 1, id+1)
	}
	require.Eventually(t, func() bool { return tree.held() == 1 }, 30*time.Second, time.Millisecond)
	open(t, b, "writer")
	require.Eventually(t, func() bool {
		b.clients.mu.Lock()
		defer b.clients.mu.Unlock()
		return len(b.clients.conns) == 1
	}, 30*time.Second, time.Millisecond)
	require.Equal(t, 1, tree.held())
}
