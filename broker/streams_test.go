package broker

import (
	"sync/atomic"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
)

// streamTree passes everything on, as a node's tree does with telemetry.
type streamTree struct {
	*fakeTree
	pass func(Message, func(error))
}

func (s *streamTree) Publish(m Message, done func(error)) { s.pass(m, done) }

// stepwise is a journal that keeps what a crash after each of its commits would leave.
type stepwise struct {
	Journal
	copy func()
}

func (s *stepwise) Commit(changes []journal.Change, done func(error)) {
	s.Journal.Commit(changes, func(err error) {
		if s.copy(); done != nil {
			done(err)
		}
	})
}

// Telemetry at QoS 2 is taken once: at whatever commit the broker is killed, when its client repeats itself the
// queue that it waits in has it once.
func TestTrial38TelemetryIsTakenOnce(t *testing.T) {
	const telemetry = "v1/nodes/n1/devices/lamp/telemetry/power"
	dir := t.TempDir()
	var copies []string
	var recording atomic.Bool
	streams := func(change func(*Options)) func(*Options) {
		return func(o *Options) {
			o.Tree = &streamTree{fakeTree: newFakeTree()}
			if change != nil {
				change(o)
			}
		}
	}
	pass := func(b *Broker) { b.opts.Tree.(*streamTree).pass = b.Pass }
	b, stop := kept(t, dir, streams(func(o *Options) {
		o.Journal = &stepwise{o.Journal, func() {
			if recording.Load() {
				copies = append(copies, crashed(t, dir))
			}
		}}
	}))
	pass(b)
	sub, pub := open(t, b, "sub", persistent), open(t, b, "pub", persistent)
	sub.sub("v1/#", 1)
	sub.leave(b, "sub")
	recording.Store(true)
	pub.publish(telemetry, "x", 2, 5)
	require.Zero(t, pub.expect(packets.Pubrec).ReasonCode)
	stop()

	require.NotEmpty(t, copies)
	for i, left := range copies {
		b, _ := kept(t, left, streams(nil))
		pass(b)
		pub := open(t, b, "pub", persistent)
		pub.publish(telemetry, "x", 2, 5, dup)
		require.Zero(t, pub.expect(packets.Pubrec).ReasonCode)
		sub := open(t, b, "sub", persistent)
		require.Equal(t, []string{"x"}, sub.collect(1), "commit %d", i)
		sub.nothing()
	}
}
