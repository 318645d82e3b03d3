// SPDX-License-Identifier: Apache-2.0

package calls

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/limits"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options configure Calls.
type Options struct {
	Role     topics.Role // of executors: RoleNode on the hub, RoleMapper on a node
	Tree     Tree
	Presence broker.Presence // gets the events of the broker that Calls gets; may be nil

	// Subscribers and Publish are the broker's.
	Subscribers func(topic string) []broker.Subscriber
	Publish     func(broker.Message)
	// NodeTime is told what time a node says it is, with its clock; nil: nobody is.
	NodeTime func(node string, at time.Time)

	Limits Limits
	Log    zerolog.Logger
}

// Tree handles the topics below v1/ that are not about commands.
type Tree interface {
	broker.Tree
	// CheckCommand returns an error if a node doesn't have a device, or its model doesn't allow the command with that payload.
	CheckCommand(node, device, command string, payload []byte) error
}

// Limits bound the time and the number of calls.
type Limits = limits.Commands

// Calls stands between a broker and its tree: it handles commands, and passes on the rest. Its methods may be called from
// any goroutine.
type Calls struct {
	Tree
	broker.Presence
	opts   Options
	log    zerolog.Logger // for what a client can cause any number of
	began  time.Time
	seed   maphash.Seed
	table  callTable
	clocks nodeClocks
}

// New makes Calls.
func New(o Options) *Calls {
	if o.Presence == nil {
		o.Presence = noPresence{}
	}
	return &Calls{
		Tree: o.Tree, Presence: o.Presence, opts: o, began: time.Now(), seed: maphash.MakeSeed(), table: newCallTable(o.Limits),
		log: o.Log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second}),
	}
}

type noPresence struct{}

func (noPresence) Connected(*broker.Identity)           {}
func (noPresence) Subscribed(*broker.Identity, string)  {}
func (noPresence) Disconnected(*broker.Identity, error) {}

// Publish implements broker.Tree.
func (c *Calls) Publish(m broker.Message, done func(error)) {
	if !mayConcern(m.Topic) {
		c.Tree.Publish(m, done)
		return
	}
	switch a, err := topics.Parse(m.Topic); {
	case err == nil && a.Kind == topics.KindCommand:
		c.request(a, m, done)
	case err == nil && a.Kind == topics.KindAnswer:
		done(c.answer(a, m))
	case err == nil && a.Kind == topics.KindClock:
		c.tellTime(a.Node, m)
		done(c.setClock(a.Node, m.ClientID(), m.Payload))
	default:
		c.Tree.Publish(m, done)
	}
}

// mayConcern spares most topics from being parsed.
func mayConcern(topic string) bool {
	path := topic[:max(0, strings.LastIndexByte(topic, '/'))]
	return strings.HasSuffix(path, "/commands") || strings.HasSuffix(path, "/answers") || strings.HasSuffix(topic, "/sync/clock")
}

// request takes a client's command. The acknowledgement says whether it was accepted; the answer, if the client gave a
// response topic, comes in any case.
func (c *Calls) request(a topics.Address, m broker.Message, done func(error)) {
	reply := m.Props.ResponseTopic
	if reply != "" && (topics.IsTree(reply) || topics.CheckTopic(reply) != nil) {
		done(resource.Errorf(resource.Invalid, "response topic", "%q: must be a topic of your own, outside %s", reply, topics.Prefix))
		return
	}
	x := c.newCall(a, m, c.opts.Publish)
	if reply == "" {
		x.reply = func(broker.Message) {}
	}
	if m.Dup {
		done(c.repeated(x))
		return
	}
	wait := c.timeout(m)
	f := c.begin(x, m, wait)
	switch {
	case f == nil:
		done(nil) // before anybody can answer
		c.forward(x, m, wait)
	case reply != "" && f.offline():
		done(nil) // the answer says it
		c.fail(x, f)
	default:
		done(f.err)
		c.fail(x, f)
	}
}

// Ask takes a command that came over the link. reply is called once, with the answer, from any goroutine, and must not
// block.
func (c *Calls) Ask(m broker.Message, reply func(broker.Message)) {
	a, err := topics.Parse(m.Topic)
	if err != nil || a.Kind != topics.KindCommand {
		c.log.Warn().Str("topic", m.Topic).Msg("the hub sent something that is not a command on a command's topic: ignored")
		return
	}
	x := c.newCall(a, m, reply)
	wait := c.timeout(m)
	m, left, known := c.takeDeadline(m)
	if known {
		wait = min(wait, left)
	}
	if f := c.begin(x, m, wait); f != nil {
		c.fail(x, f)
		return
	}
	c.forward(x, m, wait)
}

// timeout is how long a command waits for its answer: its message expiry interval, within the limits.
func (c *Calls) timeout(m broker.Message) time.Duration {
	if m.Props.Expiry == 0 {
		return c.opts.Limits.Timeout
	}
	return min(time.Duration(m.Props.Expiry)*time.Second, c.opts.Limits.Longest)
}

// begin puts a call into the table. It returns why it can't be executed, or nil.
func (c *Calls) begin(x *call, m broker.Message, wait time.Duration) *callFailure {
	c.table.accepted(x)
	if wait <= 0 {
		return &callFailure{topics.CodeExpired, fmt.Errorf("not executed: its time had been over for %s when it came", -wait.Round(time.Millisecond))}
	}
	if n := contentSize(m); n > link.MaxValue {
		return refusedFailure(resource.Errorf(resource.TooLarge, "", "%d bytes; a command is at most %d", n, link.MaxValue))
	}
	if n := len(m.Props.Correlation); n > maxCorrelation {
		return refusedFailure(resource.Errorf(resource.TooLarge, "correlation data", "%d bytes; at most %d", n, maxCorrelation))
	}
	if err := c.CheckCommand(x.node, x.device, x.topic[strings.LastIndexByte(x.topic, '/')+1:], m.Payload); err != nil {
		return refusedFailure(err)
	}
	x.id = rand.Text()
	if x.executors = c.executors(x); len(x.executors) == 0 {
		return c.offline(x)
	}
	if err := c.table.add(x, wait, func() { c.end(x.id, expiredFailure(wait)) }); err != nil {
		return &callFailure{topics.CodeBusy, err}
	}
	// Disconnected did not see the call if all executors left before it was in the table.
	if len(c.executors(x)) == 0 && c.table.remove(x.id) != nil {
		return c.offline(x)
	}
	return nil
}

// forward sends a call's command to the executors.
func (c *Calls) forward(x *call, m broker.Message, wait time.Duration) {
	m.QoS, m.Retain, m.Dup = 0, false, false
	m.Props.ResponseTopic = topics.Address{Node: x.node, Kind: topics.KindAnswer, Device: x.device, Name: x.id}.String()
	m.Props.Correlation = nil
	m.Props.Expiry = uint32((wait + time.Second - 1) / time.Second)
	c.opts.Publish(c.withDeadline(m, x.node, wait))
}

// executors are the clients that would execute the call now: those with a filter that has the level "commands". A filter
// such as # is for watching.
func (c *Calls) executors(x *call) (ids []string) {
	for _, s := range c.opts.Subscribers(x.topic) {
		if s.Identity.Has(c.opts.Role) && s.Identity.ClientID != x.from && namesCommands(s.Filter) {
			ids = append(ids, s.Identity.ClientID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// namesCommands reports whether a filter that matches v1/nodes/{node}/devices/{device}/commands/{name} has that level.
func namesCommands(filter string) bool {
	levels := strings.SplitN(filter, "/", 7)
	return len(levels) > 5 && levels[5] == "commands"
}

// answer takes an executor's answer.
func (c *Calls) answer(a topics.Address, m broker.Message) error {
	if !m.Publisher.Has(c.opts.Role) {
		return resource.Errorf(resource.Forbidden, "", "commands are not yours to answer")
	}
	x := c.table.find(a.Name)
	if x == nil || x.node != a.Node || x.device != a.Device || c.table.remove(x.id) == nil {
		c.table.late()
		return resource.Errorf(resource.NotFound, "", "nobody waits for this answer: there was one already, or the time is over")
	}
	if n := contentSize(m); n > link.MaxValue {
		err := resource.Errorf(resource.TooLarge, "", "the answer has %d bytes; it may have %d", n, link.MaxValue)
		c.fail(x, &callFailure{topics.CodeFailed, err})
		return err
	}
	r, code := x.executed(m)
	c.reply(x, code, r)
	return nil
}

// repeated handles a publish that the client may have sent before. It is not executed again. It is answered if the first
// one is not known, and so will not be.
func (c *Calls) repeated(x *call) error {
	if x.key != 0 && c.table.knows(x.key) {
		return nil
	}
	c.table.accepted(x)
	f := &callFailure{topics.CodeLost, resource.Errorf(resource.Unavailable, "",
		"sent again after a lost connection: it may or may not have been executed; ask anew if that is harmless")}
	c.fail(x, f)
	return f.err
}

// Disconnected implements broker.Presence: a call that has no executor left is answered.
func (c *Calls) Disconnected(id *broker.Identity, cause error) {
	for _, call := range c.table.executorLeft(id.ClientID) {
		c.end(call, c.lost())
	}
	if id.Has(topics.RoleNode) {
		c.clocks.forget(id.Node, id.ClientID)
	}
	c.Presence.Disconnected(id, cause)
}

// callFailure is why a call has no answer of an executor.
type callFailure struct {
	code topics.AnswerCode
	err  error
}

// offline reports whether the command was valid, but no executor was there.
func (f *callFailure) offline() bool {
	return f.code == topics.CodeNodeOffline || f.code == topics.CodeMapperOffline
}

func refusedFailure(err error) *callFailure { return &callFailure{topics.CodeRefused, err} }

func expiredFailure(wait time.Duration) *callFailure {
	return &callFailure{topics.CodeExpired, fmt.Errorf("no answer within %s: it may or may not have been executed", wait.Round(time.Millisecond))}
}

func (c *Calls) offline(x *call) *callFailure {
	if c.opts.Role == topics.RoleNode {
		return &callFailure{topics.CodeNodeOffline, resource.Errorf(resource.Unavailable, "", "node %s is not connected", x.node)}
	}
	return &callFailure{topics.CodeMapperOffline, resource.Errorf(resource.Unavailable, "", "nobody on node %s listens for commands of %s", x.node, x.device)}
}

func (c *Calls) lost() *callFailure {
	executor := "mapper"
	if c.opts.Role == topics.RoleNode {
		executor = "node"
	}
	return &callFailure{topics.CodeLost, fmt.Errorf("the connection to the %s was lost: it may or may not have been executed", executor)}
}

// end fails a call that is still in the table.
func (c *Calls) end(id string, f *callFailure) {
	if x := c.table.remove(id); x != nil {
		c.fail(x, f)
	}
}

// fail answers in the executor's place.
func (c *Calls) fail(x *call, f *callFailure) {
	if byBroker := f.code == topics.CodeRefused || f.code == topics.CodeBusy; !byBroker || x.from == "" { // the broker logs refused publishes
		c.log.Info().Str("topic", x.topic).Str("client", x.from).Str("code", string(f.code)).Err(f.err).Msg("command without an answer")
	}
	r := x.response(nil)
	r.Props.User = []broker.UserProperty{{Key: topics.PropCode, Value: string(f.code)}, {Key: topics.PropError, Value: topics.MakeReadable(f.err.Error())}}
	c.reply(x, f.code, r)
}

// reply gives the requester its one answer.
func (c *Calls) reply(x *call, code topics.AnswerCode, r broker.Message) {
	c.table.ended(x, code)
	x.reply(r)
}

// call is one command. It doesn't change once it is in the table, except for what the table guards.
type call struct {
	id           string // known to the executors only
	node, device string
	topic        string
	from, user   string   // the client that sent it, and its user; empty: it came over the link
	key          uint64   // the same if the client sends the publish again; 0: it can't
	executors    []string // client ids
	reply        func(broker.Message)

	// Of the answer.
	responseTopic string
	correlation   []byte
	qos           byte

	// Guarded by the table.
	timer     *time.Timer
	connected int // executors
}

// maxCorrelation bounds what a call keeps of its publish.
const maxCorrelation = 4096

// newCall copies what the call keeps: otherwise each would keep a whole packet.
func (c *Calls) newCall(a topics.Address, m broker.Message, reply func(broker.Message)) *call {
	x := &call{
		node: strings.Clone(a.Node), device: strings.Clone(a.Device), topic: strings.Clone(m.Topic),
		from: m.ClientID(), user: m.User(), reply: reply, responseTopic: strings.Clone(m.Props.ResponseTopic), qos: m.QoS,
		correlation: bytes.Clone(m.Props.Correlation),
	}
	x.key = c.keyOf(m)
	return x
}

// keyOf is the same for a publish and for its repetition, and for no other; 0: that can't be said. Without correlation data it can't, even
// where the packet identifier is the same: a client takes the identifier of a command that was acknowledged for the next, equal one.
func (c *Calls) keyOf(m broker.Message) uint64 {
	if m.QoS == 0 || len(m.Props.Correlation) == 0 {
		return 0
	}
	return maphash.Comparable(c.seed, struct {
		from, topic, correlation string
		id                       uint16
		payload                  uint64
	}{m.ClientID(), m.Topic, string(m.Props.Correlation), m.PacketID, maphash.Bytes(c.seed, m.Payload)})
}

// executed is the executor's answer for the requester, with its code: the executor's own, or Failed or OK.
func (x *call) executed(m broker.Message) (broker.Message, topics.AnswerCode) {
	var code topics.AnswerCode
	otherwise := topics.CodeOK
	var rest []broker.UserProperty
	for _, p := range m.Props.User {
		if p.Key == topics.PropCode {
			code = cmp.Or(code, topics.AnswerCode(p.Value))
			continue
		}
		if p.Key == topics.PropError {
			otherwise = topics.CodeFailed
		}
		rest = append(rest, p)
	}
	code = cmp.Or(code, otherwise)
	r := x.response(m.Payload)
	r.Props.ContentType, r.Props.PayloadFormat = m.Props.ContentType, m.Props.PayloadFormat
	r.Props.User = slices.Concat([]broker.UserProperty{{Key: topics.PropCode, Value: string(code)}}, rest)
	return r, code
}

func (x *call) response(payload []byte) broker.Message {
	return broker.Message{
		Topic: x.responseTopic, Payload: payload, QoS: x.qos, Props: broker.Properties{Correlation: x.correlation},
	}
}

// contentSize is that of a message's content, without the topics and what the bus adds.
func contentSize(m broker.Message) int {
	n := len(m.Payload) + len(m.Props.ContentType)
	for _, p := range m.Props.User {
		n += len(p.Key) + len(p.Value)
	}
	return n
}

// Stats is a snapshot for metrics. Counts are since the start: Taken is the sum of Ended and UnderWay.
type Stats struct {
	Taken    int64
	UnderWay int
	Ended    map[string]int64 // by code
	Late     int64            // answers after the deadline of their request
}

// OtherCode counts the codes that mappers have made up.
const OtherCode topics.AnswerCode = "Other"

// Stats takes a snapshot.
func (c *Calls) Stats() Stats {
	t := &c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.count
	s.UnderWay, s.Ended = len(t.calls), maps.Clone(s.Ended)
	return s
}

// Register adds the metrics of commands.
func (c *Calls) Register(r prometheus.Registerer) {
	f := promauto.With(r)
	counter := func(name, help string, labels prometheus.Labels, value func(Stats) int64) {
		o := prometheus.CounterOpts{Namespace: "edgebus", Subsystem: "commands", Name: name, Help: help, ConstLabels: labels}
		f.NewCounterFunc(o, func() float64 { return float64(value(c.Stats())) })
	}
	counter("total", "Commands that were asked for.", nil, func(s Stats) int64 { return s.Taken })
	f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "edgebus", Subsystem: "commands", Name: "underway", Help: "Commands that wait for their answer now."},
		func() float64 { return float64(c.Stats().UnderWay) })
	for _, code := range append(topics.AnswerCodes(), OtherCode) {
		counter("ended_total", "Commands that were answered, by the answer's code.", prometheus.Labels{"code": daemon.Label(string(code))},
			func(s Stats) int64 { return s.Ended[string(code)] })
	}
	counter("late_total", "Answers that nobody waited for any more: second ones, and those after the time was over.", nil, func(s Stats) int64 { return s.Late })
}

// rememberedCalls is how many ended calls are known when they are sent again.
const rememberedCalls = 4096

// callTable has the calls that wait for their answers. The goroutine that removes a call answers it.
type callTable struct {
	mu         sync.Mutex
	calls      map[string]*call            // by id
	byExecutor map[string]map[string]*call // by client id and id
	clients    *quota.Quota                // calls by client
	users      *quota.Quota                // calls by user
	keys       map[uint64]int              // keys of calls, waiting and recent
	recent     []uint64                    // keys of calls that have ended, oldest first
	count      Stats
}

func newCallTable(l Limits) callTable {
	return callTable{
		calls: make(map[string]*call), byExecutor: make(map[string]map[string]*call),
		clients: quota.New("commands under way", "client", quota.Limit{Most: int64(l.Client), Setting: "limits.commands.client"}, quota.Limit{}),
		users: quota.New("commands under way", "user", quota.Limit{Most: int64(l.All+1) / 2, Setting: "half of limits.commands.all"},
			quota.Limit{Most: int64(l.All), Setting: "limits.commands.all"}),
		keys: make(map[uint64]int), count: Stats{Ended: make(map[string]int64)},
	}
}

// add puts a call in. expire is called after wait.
func (t *callTable) add(x *call, wait time.Duration, expire func()) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.clients.Check(x.from, 1); err != nil {
		return err
	}
	if err := t.users.Take(x.user, 1); err != nil {
		return err
	}
	t.clients.Add(x.from, 1)
	x.timer, x.connected = time.AfterFunc(wait, expire), len(x.executors)
	t.calls[x.id] = x
	for _, client := range x.executors {
		if t.byExecutor[client] == nil {
			t.byExecutor[client] = make(map[string]*call)
		}
		t.byExecutor[client][x.id] = x
	}
	return nil
}

func (t *callTable) find(id string) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls[id]
}

// remove takes a call out; nil: it is not there any more.
func (t *callTable) remove(id string) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.calls[id]
	if x == nil {
		return nil
	}
	x.timer.Stop()
	delete(t.calls, id)
	t.clients.Add(x.from, -1)
	t.users.Add(x.user, -1)
	for _, client := range x.executors {
		delete(t.byExecutor[client], id)
		if len(t.byExecutor[client]) == 0 {
			delete(t.byExecutor, client)
		}
	}
	return x
}

// executorLeft lists the calls that have no executor now that a client is gone.
func (t *callTable) executorLeft(client string) (ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, x := range t.byExecutor[client] {
		if x.connected--; x.connected == 0 {
			ids = append(ids, id)
		}
	}
	delete(t.byExecutor, client)
	slices.Sort(ids)
	return ids
}

// knows reports whether a call with the key waits, or has ended recently.
func (t *callTable) knows(key uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keys[key] > 0
}

// accepted is called once for each call, and ended once when it has its answer.
func (t *callTable) accepted(x *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.Taken++
	if x.key != 0 {
		t.keys[x.key]++
	}
}

func (t *callTable) ended(x *call, code topics.AnswerCode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(topics.AnswerCodes(), code) {
		code = OtherCode
	}
	t.count.Ended[string(code)]++
	if x.key == 0 {
		return
	}
	if t.recent = append(t.recent, x.key); len(t.recent) > rememberedCalls {
		oldest := t.recent[0]
		t.recent = t.recent[1:]
		if t.keys[oldest]--; t.keys[oldest] == 0 {
			delete(t.keys, oldest)
		}
	}
}

func (t *callTable) late() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.Late++
}
