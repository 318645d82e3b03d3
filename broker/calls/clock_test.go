// SPDX-License-Identifier: Apache-2.0

package calls

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// clockPair is a hub and a core with a link between them that takes its time.
type clockPair struct {
	t         *testing.T
	hub, core *testBus
}

func newClockPair(t *testing.T) *clockPair {
	p := &clockPair{t: t, hub: newTestBus(t, func(o *Options) { o.Role = topics.RoleNode })}
	p.hub.silence()
	p.hub.listen("node/n1", topics.RoleNode, commandsFilter)
	time.Sleep(time.Hour) // of a clock that doesn't make anybody wait, as below: the core begins later
	p.core = newTestBus(t, nil)
	return p
}

func (p *clockPair) node() *broker.Identity {
	return &broker.Identity{ClientID: "node/n1", Node: "n1", Roles: []topics.Role{topics.RoleNode}}
}

// tell has the core's clock arrive at the hub after a while.
func (p *clockPair) tell(after time.Duration) {
	m := broker.Message{Topic: "v1/nodes/n1/sync/clock", Payload: p.core.Clock(), Publisher: p.node()}
	time.Sleep(after) // as above
	require.NoError(p.t, p.hub.verdict(m))
}

// pass has a command take a while from the hub to the core, and returns what comes of
// it there: what the mapper is sent, or the core's answer.
func (p *clockPair) pass(expiry uint32, after time.Duration) (sent *broker.Message, code string) {
	p.t.Helper()
	p.hub.take() // what has expired
	mine := broker.UserProperty{Key: "mine", Value: "x"}
	require.NoError(p.t, p.hub.ask(withExpiry(expiry), func(m *broker.Message) { m.Props.User = []broker.UserProperty{mine} }))
	m, _, _ := p.hub.one()
	time.Sleep(after) // as above
	synctest.Wait()
	told := make(chan string, 1)
	p.core.Ask(m, func(r broker.Message) { told <- r.Props.User[0].Value })
	select {
	case code = <-told:
	default:
	}
	if out := p.core.take(); len(out) > 0 {
		require.Equal(p.t, []broker.UserProperty{mine}, out[0].Props.User)
		sent = &out[0]
	}
	return sent, code
}

// However long a command was on its way, it is not executed when its time is over.
func TestACommandThatComesTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newClockPair(t)
		sent, _ := p.pass(2, 5*time.Second)
		require.NotNil(t, sent, "without a clock nobody can know")

		p.tell(10 * time.Millisecond)
		sent, _ = p.pass(3, time.Second)
		require.Equal(t, uint32(2), sent.Props.Expiry, "what is left, rounded up")
		sent, code := p.pass(2, 1990*time.Millisecond)
		require.Nil(t, sent, "the clock took 10 ms to come")
		require.Equal(t, "Expired", code)

		time.Sleep(24 * time.Hour) // as above
		p.tell(20 * time.Second)   // a late message is worse than an old one, if that isn't too old
		sent, _ = p.pass(30, 5*time.Second)
		require.NotNil(t, sent)
		p.tell(10 * time.Millisecond)
		sent, _ = p.pass(2, 1900*time.Millisecond)
		require.NotNil(t, sent)
		p.tell(time.Second)
		sent, _ = p.pass(2, 1900*time.Millisecond)
		require.NotNil(t, sent)

		bridge := p.node()
		bridge.ClientID += "/bridge"
		p.hub.Disconnected(bridge, nil)
		sent, _ = p.pass(2, 5*time.Second)
		require.Nil(t, sent, "the node's other connection is not the link")
		p.hub.Disconnected(p.node(), nil)
		sent, _ = p.pass(2, 5*time.Second)
		require.NotNil(t, sent, "another connection has another clock")
	})
}

func TestWhatIsNoClock(t *testing.T) {
	b := newTestBus(t, nil)
	for _, payload := range []string{"", "soon", "-1", "1e3", "99999999999999999999", "9223372036854775807"} {
		err := b.verdict(broker.Message{Topic: "v1/nodes/n1/sync/clock", Payload: []byte(payload)})
		require.ErrorIs(t, err, resource.Invalid, payload)
	}
	require.Empty(t, b.clocks.node)
}

// What a node's system clock shows comes beside the clock of its process.
func TestTheHubIsToldTheTimeOfANodesClock(t *testing.T) {
	var of string
	var shows time.Time
	b := newTestBus(t, func(o *Options) {
		o.Role, o.NodeTime = topics.RoleNode, func(node string, at time.Time) { of, shows = node, at }
	})
	m := broker.Message{Topic: "v1/nodes/n1/sync/clock", Payload: []byte("1"), Publisher: &broker.Identity{ClientID: "node/n1", Node: "n1", Roles: []topics.Role{topics.RoleNode}}}
	m.Props.User = []broker.UserProperty{{Key: PropTime, Value: "2026-11-22T12:00:00.000Z"}}
	require.NoError(t, b.verdict(m))
	require.Equal(t, "n1", of)
	require.Equal(t, time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), shows.UTC())
}
