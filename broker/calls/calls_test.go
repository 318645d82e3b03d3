// SPDX-License-Identifier: Apache-2.0

package calls

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	commandTopic   = "v1/nodes/n1/devices/lamp/commands/beep"
	commandsFilter = "v1/nodes/n1/devices/+/commands/+"
)

// testBus is a broker and a tree in the test's hand.
type testBus struct {
	*Calls
	t *testing.T

	mu    sync.Mutex
	subs  []broker.Subscriber
	out   []broker.Message
	other []string // topics that the tree was given
}

func newTestBus(t *testing.T, change func(*Options)) *testBus {
	b := &testBus{t: t}
	o := Options{
		Role: topics.RoleMapper, Tree: b, Publish: b.published, Subscribers: b.subscribers, Log: zerolog.Nop(),
		Limits: Limits{Timeout: 30 * time.Second, Longest: time.Minute, Client: 3, All: 5},
	}
	if change != nil {
		change(&o)
	}
	b.Calls = New(o)
	b.listen("mapper", topics.RoleMapper, commandsFilter)
	return b
}

func (b *testBus) CheckCommand(node, device, command string, payload []byte) error {
	if node != "n1" || device != "lamp" {
		return resource.Errorf(resource.NotFound, "", "no device %s on %s", device, node)
	}
	if command == "reset" && len(payload) > 0 {
		return resource.Errorf(resource.Invalid, command, "takes no input")
	}
	return nil
}

func (b *testBus) Retained(string) func(int) []broker.Message { return nil }

// Publish is the tree's; the bus is tested by ask and answer.
func (b *testBus) Publish(m broker.Message, done func(error)) {
	b.other = append(b.other, m.Topic)
	done(nil)
}

func (b *testBus) subscribers(string) []broker.Subscriber {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.subs
}

func (b *testBus) published(m broker.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out = append(b.out, m)
}

func (b *testBus) listen(client string, role topics.Role, filter string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs = append(b.subs, broker.Subscriber{Identity: &broker.Identity{ClientID: client, Roles: []topics.Role{role}}, Filter: filter})
}

func (b *testBus) silence() { b.mu.Lock(); b.subs = nil; b.mu.Unlock() }

// take returns what was published since it was last asked.
func (b *testBus) take() []broker.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.out
	b.out = nil
	return out
}

// Whoever has the answer has the acknowledgement, too: nobody can answer before it is given.
func TestACommandIsAcknowledgedBeforeItGoesOn(t *testing.T) {
	b := newTestBus(t, nil)
	m := broker.Message{Topic: commandTopic, QoS: 1, Publisher: &broker.Identity{ClientID: "ann"}}
	m.Props.ResponseTopic = "reply/ann"
	told := false
	b.Calls.Publish(m, func(err error) {
		require.NoError(t, err)
		require.Empty(t, b.take())
		told = true
	})
	require.True(t, told)
	require.Len(t, b.take(), 1)
}

// ask publishes a command of client ann's, and returns what she is told.
func (b *testBus) ask(change ...func(*broker.Message)) error {
	m := broker.Message{Topic: commandTopic, Payload: []byte("twice"), QoS: 1, Publisher: &broker.Identity{ClientID: "ann"}}
	m.Props.ResponseTopic, m.Props.Correlation = "reply/ann", []byte("7")
	for _, f := range change {
		f(&m)
	}
	return b.verdict(m)
}

func (b *testBus) verdict(m broker.Message) error {
	told := 0
	var verdict error
	b.Calls.Publish(m, func(err error) { verdict, told = err, told+1 })
	require.Equal(b.t, 1, told)
	return verdict
}

// answer publishes an answer of the mapper's.
func (b *testBus) answer(to broker.Message, payload string, user ...broker.UserProperty) error {
	return b.verdict(broker.Message{
		Topic: to.Props.ResponseTopic, Payload: []byte(payload), Props: broker.Properties{User: user},
		Publisher: &broker.Identity{ClientID: "mapper", Roles: []topics.Role{topics.RoleMapper}},
	})
}

// one is the only message that was published; its code and error, if it has them.
func (b *testBus) one() (m broker.Message, code, text string) {
	b.t.Helper()
	out := b.take()
	require.Len(b.t, out, 1)
	for _, p := range out[0].Props.User {
		switch p.Key {
		case topics.PropCode:
			code = p.Value
		case topics.PropError:
			text = p.Value
		}
	}
	return out[0], code, text
}

func withoutAnswer(m *broker.Message) { m.Props.ResponseTopic, m.Props.Correlation = "", nil }
func asDuplicate(m *broker.Message)   { m.Dup = true }

func fromClient(client string) func(*broker.Message) {
	return func(m *broker.Message) { m.Publisher.ClientID = client }
}

func withCorrelation(n string) func(*broker.Message) {
	return func(m *broker.Message) { m.Props.Correlation = []byte(n) }
}

func withExpiry(seconds uint32) func(*broker.Message) {
	return func(m *broker.Message) { m.Props.Expiry = seconds }
}

func TestRequestAndAnswer(t *testing.T) {
	b := newTestBus(t, nil)
	mine := broker.UserProperty{Key: "mine", Value: "x"}
	require.NoError(t, b.ask(func(m *broker.Message) { m.Retain, m.Props.User = true, []broker.UserProperty{mine} }))
	sent, _, _ := b.one()
	require.Equal(t, commandTopic, sent.Topic)
	require.Equal(t, "twice", string(sent.Payload))
	require.Zero(t, sent.QoS)
	require.False(t, sent.Retain)
	require.Equal(t, uint32(30), sent.Props.Expiry)
	require.Empty(t, sent.Props.Correlation, "it is the asker's")
	require.Equal(t, []broker.UserProperty{mine}, sent.Props.User)
	require.True(t, strings.HasPrefix(sent.Props.ResponseTopic, "v1/nodes/n1/devices/lamp/answers/"))
	require.Equal(t, 1, b.Stats().UnderWay)

	require.NoError(t, b.answer(sent, "beep beep", mine))
	got, code, _ := b.one()
	require.Equal(t, "reply/ann", got.Topic)
	require.Equal(t, "beep beep", string(got.Payload))
	require.Equal(t, "7", string(got.Props.Correlation))
	require.Equal(t, byte(1), got.QoS)
	require.Equal(t, "OK", code)
	require.Contains(t, got.Props.User, mine)

	require.ErrorIs(t, b.answer(sent, "beep again"), resource.NotFound)
	require.Empty(t, b.take())
	require.Equal(t, Stats{Taken: 1, Late: 1, Ended: map[string]int64{"OK": 1}}, b.Stats())
}

func TestWhatTheAnswerSays(t *testing.T) {
	b := newTestBus(t, nil)
	prop := func(k, v string) broker.UserProperty { return broker.UserProperty{Key: k, Value: v} }
	for _, c := range []struct {
		user   []broker.UserProperty
		code   string
		counts string
	}{
		{nil, "OK", "OK"},
		{[]broker.UserProperty{prop("error", "jammed")}, "Failed", "Failed"},
		{[]broker.UserProperty{prop("error", "no"), prop("code", "Refused"), prop("code", "OK")}, "Refused", "Refused"},
		{[]broker.UserProperty{prop("code", "Jammed")}, "Jammed", "Other"},
	} {
		require.NoError(t, b.ask())
		sent, _, _ := b.one()
		before := b.Stats().Ended[c.counts]
		require.NoError(t, b.answer(sent, "x", c.user...))
		_, code, _ := b.one()
		require.Equal(t, c.code, code)
		require.Equal(t, before+1, b.Stats().Ended[c.counts])
	}
	require.NoError(t, b.ask())
	sent, _, _ := b.one()
	require.ErrorIs(t, b.answer(sent, strings.Repeat("x", 1<<20)), resource.TooLarge)
	_, code, text := b.one()
	require.Equal(t, "Failed", code)
	require.Contains(t, text, "1048576 bytes")
}

// Whoever gives a response topic is answered there in any case. Who gives none is
// told by the acknowledgement.
func TestNotExecuted(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(*testBus)
		change  func(*broker.Message)
		code    topics.AnswerCode
		refused error // nil: taken
		text    string
	}{
		{
			"unknown device", nil, func(m *broker.Message) { m.Topic = strings.Replace(m.Topic, "lamp", "toaster", 1) },
			topics.CodeRefused, resource.NotFound, "toaster",
		},
		{
			"too much correlation data", nil, func(m *broker.Message) { m.Props.Correlation = make([]byte, 5000) },
			topics.CodeRefused, resource.TooLarge, "at most 4096",
		},
		{"too large", nil, func(m *broker.Message) { m.Payload = make([]byte, 1<<20) }, topics.CodeRefused, resource.TooLarge, "at most"},
		{"nobody there", func(b *testBus) { b.silence() }, nil, topics.CodeMapperOffline, nil, "lamp"},
		{"watchers only", func(b *testBus) {
			b.silence()
			b.listen("mapper", topics.RoleMapper, "#")
			b.listen("mapper", topics.RoleMapper, "v1/nodes/n1/devices/#")
			b.listen("mapper", topics.RoleMapper, "v1/nodes/n1/devices/lamp/+/beep")
		}, nil, topics.CodeMapperOffline, nil, ""},
		{"of an input that the model doesn't allow", nil, func(m *broker.Message) {
			m.Topic, m.Payload = strings.TrimSuffix(commandTopic, "beep")+"reset", []byte("1")
		}, topics.CodeRefused, resource.Invalid, "takes no input"},
		{"nobody who may", func(b *testBus) { b.silence(); b.listen("bob", topics.RoleOperator, commandTopic) }, nil, topics.CodeMapperOffline, nil, ""},
		{"the asker alone", func(b *testBus) { b.silence(); b.listen("ann", topics.RoleMapper, commandsFilter) }, nil, topics.CodeMapperOffline, nil, ""},
		{"on the hub", func(b *testBus) { b.opts.Role = topics.RoleNode }, nil, topics.CodeNodeOffline, nil, "n1"},
	} {
		b := newTestBus(t, nil)
		if c.prepare != nil {
			c.prepare(b)
		}
		if c.change == nil {
			c.change = func(*broker.Message) {}
		}
		err := b.ask(c.change)
		require.ErrorIs(t, err, c.refused, c.name)
		got, code, text := b.one()
		require.Equal(t, "reply/ann", got.Topic, c.name)
		require.Contains(t, []int{1, 5000}, len(got.Props.Correlation), c.name)
		require.Equal(t, string(c.code), code, c.name)
		require.Contains(t, text, c.text, c.name)

		require.Error(t, b.ask(withoutAnswer, c.change), c.name)
		require.Empty(t, b.take(), c.name)
		require.Equal(t, Stats{Taken: 2, Ended: map[string]int64{string(c.code): 2}}, b.Stats(), c.name)
	}
}

func TestTheGoneAreNotAsked(t *testing.T) {
	b := newTestBus(t, nil)
	asked := 0
	b.opts.Subscribers = func(topic string) []broker.Subscriber {
		if asked++; asked == 2 { // it goes in between
			b.Disconnected(&broker.Identity{ClientID: "stranger"}, nil)
			return nil
		}
		return b.subscribers(topic)
	}
	require.NoError(t, b.ask())
	_, code, _ := b.one()
	require.Equal(t, "MapperOffline", code)
}

func TestResponseTopicIsTheAskersOwn(t *testing.T) {
	b := newTestBus(t, nil)
	for _, topic := range []string{"v1/nodes/n1/devices/lamp/answers/X", "v1/refused/ann", "a/+", "$SYS/x"} {
		require.ErrorIs(t, b.ask(func(m *broker.Message) { m.Props.ResponseTopic = topic }), resource.Invalid, topic)
	}
	require.Empty(t, b.take())
	require.Zero(t, b.Stats().Taken)
}

func TestTimeIsOver(t *testing.T) {
	for asked, wait := range map[uint32]time.Duration{0: 30 * time.Second, 2: 2 * time.Second, 3600: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			b := newTestBus(t, nil)
			require.NoError(t, b.ask(withExpiry(asked)))
			sent, _, _ := b.one()
			require.Equal(t, uint32(wait/time.Second), sent.Props.Expiry)
			time.Sleep(wait - time.Nanosecond) // of a clock that doesn't make anybody wait
			synctest.Wait()
			require.Empty(t, b.take())
			time.Sleep(time.Nanosecond) // the same
			synctest.Wait()
			_, code, text := b.one()
			require.Equal(t, "Expired", code)
			require.Contains(t, text, wait.String())
			require.ErrorIs(t, b.answer(sent, "at last"), resource.NotFound)
			require.Empty(t, b.take())
		})
	}
}

// A call is lost with the last of those who were asked.
func TestConnectionLost(t *testing.T) {
	b := newTestBus(t, nil)
	b.listen("mapper", topics.RoleMapper, commandTopic) // a second filter of the same client
	b.listen("other", topics.RoleMapper, commandsFilter)
	require.NoError(t, b.ask())
	require.NoError(t, b.ask(withoutAnswer))
	require.Len(t, b.take(), 2)
	b.Disconnected(&broker.Identity{ClientID: "mapper"}, nil)
	b.Disconnected(&broker.Identity{ClientID: "ann"}, nil)
	require.Empty(t, b.take())
	b.Disconnected(&broker.Identity{ClientID: "other"}, nil)
	_, code, text := b.one()
	require.Equal(t, "Lost", code)
	require.Contains(t, text, "may or may not")
	require.Equal(t, Stats{Taken: 2, Ended: map[string]int64{"Lost": 2}}, b.Stats())
}

func TestLimits(t *testing.T) {
	b := newTestBus(t, nil)
	for range 3 {
		require.NoError(t, b.ask())
	}
	sent := b.take()
	require.ErrorContains(t, b.ask(), "one client may have 3 commands under way at most (limits.commands.client)")
	_, code, _ := b.one()
	require.Equal(t, "Busy", code)
	require.ErrorIs(t, b.ask(withoutAnswer), resource.Quota)

	ask := broker.Message{Topic: commandTopic, Props: broker.Properties{ResponseTopic: "v1/nodes/n1/devices/lamp/answers/X"}}
	b.Ask(ask, b.published)
	b.Ask(ask, b.published)
	require.Len(t, b.take(), 2, "the commands themselves")
	b.Ask(ask, b.published)
	told, code, _ := b.one()
	require.Equal(t, "v1/nodes/n1/devices/lamp/answers/X", told.Topic)
	require.Equal(t, "Busy", code)

	require.NoError(t, b.answer(sent[0], "x"))
	require.NoError(t, b.ask(), "there is room again")
	require.Equal(t, 5, b.Stats().UnderWay)
}

// Of two equal commands the first was executed; the second was lost on its way, and is sent again. It is not taken for the first.
func TestARepeatedCommandIsNotTakenForAnEarlierEqualOne(t *testing.T) {
	anonymous := func(m *broker.Message) { m.Props.ResponseTopic, m.Props.Correlation = "", nil }
	for name, change := range map[string][2]func(*broker.Message){
		"without correlation data":         {anonymous, anonymous},
		"with a constant, and another id":  {func(m *broker.Message) { m.PacketID = 1 }, func(m *broker.Message) { m.PacketID = 2 }},
		"with a constant, and another arg": {func(m *broker.Message) { m.Payload = []byte("1") }, func(m *broker.Message) { m.Payload = []byte("2") }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestBus(t, nil)
			require.NoError(t, b.ask(change[0]))
			sent, _, _ := b.one()
			require.NoError(t, b.answer(sent, "done"))
			b.take()
			require.Error(t, b.ask(change[1], asDuplicate), "it was not executed, and is not acknowledged as if it were")
			if name != "without correlation data" {
				require.NoError(t, b.ask(change[0], asDuplicate), "the first one was")
			}
		})
	}
}

// A publish that its client sends again, for it saw no acknowledgement, may have been
// executed. It is not executed a second time, and not answered a second time.
func TestSentAgain(t *testing.T) {
	b := newTestBus(t, nil)
	require.NoError(t, b.ask(withCorrelation("1")))
	sent, _, _ := b.one()
	require.NoError(t, b.ask(withCorrelation("1"), asDuplicate), "it is under way")
	require.Empty(t, b.take())
	require.NoError(t, b.answer(sent, "x"))
	require.Len(t, b.take(), 1)
	require.NoError(t, b.ask(withCorrelation("1"), asDuplicate), "it was answered")
	require.Empty(t, b.take())

	err := b.ask(withCorrelation("2"), asDuplicate)
	require.ErrorContains(t, err, "may or may not")
	_, code, _ := b.one()
	require.Equal(t, "Lost", code)
	require.NoError(t, b.ask(withCorrelation("2"), asDuplicate))
	require.Error(t, b.ask(withCorrelation("1"), asDuplicate, fromClient("bob")), "another client's")
	require.Len(t, b.take(), 1)

	b.silence()
	for i := range rememberedCalls + 10 {
		require.NoError(t, b.ask(withCorrelation(fmt.Sprint("more", i))))
	}
	b.take()
	require.Error(t, b.ask(withCorrelation("1"), asDuplicate), "long ago")
	require.Len(t, b.table.recent, rememberedCalls)
	require.Len(t, b.table.keys, rememberedCalls)
}

func TestWhoMayAnswer(t *testing.T) {
	b := newTestBus(t, nil)
	require.NoError(t, b.ask())
	sent, _, _ := b.one()
	m := broker.Message{Topic: sent.Props.ResponseTopic, Publisher: &broker.Identity{Roles: []topics.Role{topics.RoleNode}}}
	require.ErrorIs(t, b.verdict(m), resource.Forbidden)
	m.Publisher.Roles = []topics.Role{topics.RoleMapper}
	for _, wrong := range []string{"n1/devices/lamp", "n2/devices/lamp", "n1/devices/other"} {
		m.Topic = strings.Replace(sent.Props.ResponseTopic, "n1/devices/lamp", wrong, 1)
		if wrong == "n1/devices/lamp" {
			m.Topic += "X"
		}
		require.ErrorIs(t, b.verdict(m), resource.NotFound, wrong)
	}
	require.Empty(t, b.take())
	require.NoError(t, b.answer(sent, "x"))
}

func TestTheRestIsTheTrees(t *testing.T) {
	b := newTestBus(t, nil)
	rest := []string{
		"v1/nodes/n1/devices/lamp/desired/power", "v1/nodes/n1/devices/lamp/telemetry/commands/x", "v1/nodes/n1/nonsense/answers/x",
	}
	for _, topic := range rest {
		require.NoError(t, b.verdict(broker.Message{Topic: topic}))
	}
	require.Equal(t, rest, b.other)
	require.Zero(t, b.Stats().Taken)
}

// Answers, losses and the clock race for each call: one wins.
func TestExactlyOneAnswer(t *testing.T) {
	const calls = 2000
	b := newTestBus(t, func(o *Options) {
		o.Limits = Limits{Timeout: 5 * time.Millisecond, Longest: time.Hour, Client: calls, All: calls}
	})
	var asking, racing sync.WaitGroup
	for i := range calls {
		asking.Go(func() {
			m := broker.Message{Topic: commandTopic, Publisher: &broker.Identity{ClientID: "ann"}}
			m.Props.ResponseTopic = fmt.Sprint("reply/", i)
			b.Calls.Publish(m, func(error) {})
		})
	}
	answers := map[string]int{}
	count := func() {
		for _, m := range b.take() {
			if m.Topic != commandTopic {
				answers[m.Topic]++
				continue
			}
			for range 2 {
				racing.Go(func() {
					b.Calls.Publish(broker.Message{
						Topic: m.Props.ResponseTopic, Publisher: &broker.Identity{Roles: []topics.Role{topics.RoleMapper}},
					}, func(error) {})
				})
			}
			if len(answers)%50 == 0 {
				racing.Go(func() { b.Disconnected(&broker.Identity{ClientID: "mapper"}, nil) })
			}
		}
	}
	// A call that has expired is no longer under way a moment before its answer is there.
	all := func() bool { count(); return len(answers) == calls && b.Stats().UnderWay == 0 }
	require.Eventually(t, all, 30*time.Second, time.Millisecond)
	asking.Wait()
	for range 2 { // answers that come too late are still on their way
		count()
		racing.Wait()
	}
	for topic, n := range answers {
		require.Equal(t, 1, n, topic)
	}
	require.Empty(t, b.table.byExecutor)
	require.Zero(t, b.table.clients.Held())
	require.Zero(t, b.table.users.Held())
}
