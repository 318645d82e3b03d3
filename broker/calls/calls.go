// Package calls carries commands: requests to a device that are answered, and never
// stored. It is the same on the hub, where a node's core executes what it is sent,
// and on the node's own broker, where a mapper does.
//
// Whoever gives a response topic gets exactly one answer there, in any case: from
// whoever executed the command, or, when that can't be any more, from here. A command
// goes on at QoS 0 to those who listen now and nobody else, with a response topic
// that only they know; nothing repeats it, so nothing executes it twice.
//
// The package never stores anything, and what was under way ends with the process:
// to an asker here its connection is lost, and an asker at the other end is told by
// that end.
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
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/configs/limits"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what Calls are made from.
type Options struct {
	// Role is of those who execute commands: the node's on the hub, the mappers' on a node.
	Role topics.Role
	Tree Tree
	// Presence is told what the broker tells. nil: nobody is.
	Presence broker.Presence
	// Subscribers and Publish are the broker's.
	Subscribers func(topic string) []broker.Subscriber
	Publish     func(broker.Message)
	Limits      Limits
	Log         zerolog.Logger
}

// Tree is what is below v1/ besides commands.
type Tree interface {
	broker.Tree
	// Has says why a node doesn't have a device; nil: it does.
	Has(node, device string) error
}

// Limits bound calls in time and number.
type Limits = limits.Commands

// Calls stand between a broker and its tree, take what is about commands, and pass on
// the rest. Their methods may be called from any goroutine.
type Calls struct {
	Tree
	o      Options
	log    zerolog.Logger // for what a client can cause any number of
	began  time.Time
	seed   maphash.Seed
	table  table
	clocks clocks
}

// New makes Calls.
func New(o Options) *Calls {
	return &Calls{
		Tree: o.Tree, o: o, began: time.Now(), seed: maphash.MakeSeed(), table: newTable(o.Limits),
		log: o.Log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second}),
	}
}

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
		done(c.told(a.Node, m.Publisher.ClientID, m.Payload))
	default:
		c.Tree.Publish(m, done)
	}
}

// request takes a client's command. The publisher is told by the acknowledgement
// whether it was taken; whoever gave a response topic gets an answer in any case.
func (c *Calls) request(a topics.Address, m broker.Message, done func(error)) {
	reply := m.Props.ResponseTopic
	if reply != "" && (topics.IsTree(reply) || topics.CheckTopic(reply) != nil) {
		done(resource.Errorf(resource.Invalid, "response topic", "%q: must be a topic of your own, outside %s", reply, topics.Prefix))
		return
	}
	x := c.newCall(a, m, c.o.Publish)
	if reply == "" {
		x.reply = func(broker.Message) {}
	}
	if m.Again {
		done(c.repeated(x))
		return
	}
	wait := waitOf(c.o.Limits, m.Props.Expiry)
	end := c.take(x, m, wait)
	if end == nil {
		done(nil) // before anybody can answer; it may still wait behind what was published before on the connection
		c.pass(x, m, wait)
		return
	}
	if reply == "" || !end.away() {
		done(end.err)
	} else {
		done(nil) // the answer says it
	}
	c.finish(x, end)
}

// Ask takes a command that came over the link. reply is called once, with the answer,
// from any goroutine, and must not block.
func (c *Calls) Ask(m broker.Message, reply func(broker.Message)) {
	a, err := topics.Parse(m.Topic)
	if err != nil || a.Kind != topics.KindCommand {
		c.log.Warn().Str("topic", m.Topic).Msg("not a command, and not taken for one")
		return
	}
	x := c.newCall(a, m, reply)
	wait := waitOf(c.o.Limits, m.Props.Expiry)
	m, left, known := c.deadline(m)
	if known {
		wait = min(wait, left)
	}
	if end := c.take(x, m, wait); end != nil {
		c.finish(x, end)
		return
	}
	c.pass(x, m, wait)
}

// take puts a call under way, to be passed on. It returns how the call has ended if it can't.
func (c *Calls) take(x *call, m broker.Message, wait time.Duration) *ending {
	c.table.taken(x)
	if wait <= 0 {
		return &ending{topics.Expired, fmt.Errorf("not executed: its time had been over for %s when it came", -wait.Round(time.Millisecond))}
	}
	if n := size(m); n > link.MaxValue {
		return refused(resource.Errorf(resource.TooLarge, "", "%d bytes; a command is at most %d", n, link.MaxValue))
	}
	if n := len(m.Props.Correlation); n > maxCorrelation {
		return refused(resource.Errorf(resource.TooLarge, "correlation data", "%d bytes; at most %d", n, maxCorrelation))
	}
	if err := c.Has(x.node, x.device); err != nil {
		return refused(err)
	}
	x.id = rand.Text()
	x.asked = c.listeners(x)
	if len(x.asked) == 0 {
		return c.nobody(x)
	}
	if err := c.table.begin(x, wait, func() { c.end(x.id, expired(wait)) }); err != nil {
		return &ending{topics.Busy, err}
	}
	// Who has gone before the call was in the table has not taken it along.
	if len(c.listeners(x)) == 0 && c.table.end(x.id) != nil {
		return c.nobody(x)
	}
	return nil
}

// pass sends a call that is under way to those who are to execute it.
func (c *Calls) pass(x *call, m broker.Message, wait time.Duration) {
	c.o.Publish(c.withDeadline(x.forwarded(m, wait), x.node, wait))
}

// listeners are the clients that would execute the call now: those with a filter that
// names the level "commands". A filter such as # is for watching.
func (c *Calls) listeners(x *call) (ids []string) {
	for _, s := range c.o.Subscribers(x.topic) {
		if s.Identity.Has(c.o.Role) && s.Identity.ClientID != x.from && namesCommands(s.Filter) {
			ids = append(ids, s.Identity.ClientID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (c *Calls) nobody(x *call) *ending {
	if c.o.Role == topics.RoleNode {
		return &ending{topics.NodeOffline, resource.Errorf(resource.Unavailable, "", "node %s is not connected", x.node)}
	}
	return &ending{topics.MapperOffline, resource.Errorf(resource.Unavailable, "", "nobody on node %s listens for commands of %s", x.node, x.device)}
}

// answer takes what an executor says of a call.
func (c *Calls) answer(a topics.Address, m broker.Message) error {
	if !m.Publisher.Has(c.o.Role) {
		return resource.Errorf(resource.Forbidden, "", "commands are not yours to answer")
	}
	x := c.table.find(a.Name)
	if x == nil || x.node != a.Node || x.device != a.Device || c.table.end(x.id) == nil {
		c.table.late()
		return resource.Errorf(resource.NotFound, "", "nobody waits for this answer: there was one already, or the time is over")
	}
	if n := size(m); n > link.MaxValue {
		err := resource.Errorf(resource.TooLarge, "", "the answer has %d bytes; it may have %d", n, link.MaxValue)
		c.finish(x, &ending{topics.Failed, err})
		return err
	}
	r, code := x.answered(m)
	c.settle(x, code, r)
	return nil
}

// repeated is a publish that its sender may have sent before: it is not executed, for
// it may have been. It gets an answer if it has none, and none is to come.
func (c *Calls) repeated(x *call) error {
	if c.table.knows(x.key) {
		return nil
	}
	c.table.taken(x)
	end := &ending{topics.Lost, resource.Errorf(resource.Unavailable, "",
		"sent again after a lost connection: it may or may not have been executed; ask anew if that is harmless")}
	c.finish(x, end)
	return end.err
}

// Connected implements broker.Presence.
func (c *Calls) Connected(id broker.Identity) {
	if c.o.Presence != nil {
		c.o.Presence.Connected(id)
	}
}

// Subscribed implements broker.Presence.
func (c *Calls) Subscribed(id broker.Identity, filter string) {
	if c.o.Presence != nil {
		c.o.Presence.Subscribed(id, filter)
	}
}

// Disconnected implements broker.Presence: what a client took along is answered.
func (c *Calls) Disconnected(id broker.Identity, cause error) {
	for _, call := range c.table.left(id.ClientID) {
		c.end(call, c.lost())
	}
	if id.Has(topics.RoleNode) {
		c.clocks.forget(id.Node, id.ClientID)
	}
	if c.o.Presence != nil {
		c.o.Presence.Disconnected(id, cause)
	}
}

func (c *Calls) lost() *ending {
	who := "mapper"
	if c.o.Role == topics.RoleNode {
		who = "node"
	}
	return &ending{topics.Lost, fmt.Errorf("the connection to the %s was lost: it may or may not have been executed", who)}
}

func expired(wait time.Duration) *ending {
	return &ending{topics.Expired, fmt.Errorf("no answer within %s: it may or may not have been executed", wait.Round(time.Millisecond))}
}

func refused(err error) *ending { return &ending{topics.Refused, err} }

// ending is how a call ends that its executor didn't answer.
type ending struct {
	code topics.Code
	err  error
}

// away says whether the command was in order, but there was nobody to execute it.
func (e *ending) away() bool { return e.code == topics.NodeOffline || e.code == topics.MapperOffline }

// end ends a call that is under way, if it still is.
func (c *Calls) end(id string, end *ending) {
	if x := c.table.end(id); x != nil {
		c.finish(x, end)
	}
}

// finish answers in the executor's place.
func (c *Calls) finish(x *call, end *ending) {
	if told := end.code == topics.Refused || end.code == topics.Busy; !told || x.from == "" { // by the broker
		c.log.Info().Str("topic", x.topic).Str("client", x.from).Str("code", string(end.code)).Err(end.err).Msg("command without an answer")
	}
	c.settle(x, end.code, x.ended(end))
}

// settle gives the asker its one answer.
func (c *Calls) settle(x *call, code topics.Code, r broker.Message) {
	c.table.settled(x, code)
	x.reply(r)
}

// Stats is a snapshot for metrics. Counts are since the start: Taken is the sum of
// Ended and UnderWay.
type Stats struct {
	Taken    int64
	UnderWay int
	Ended    map[string]int64 // by code; a mapper's own words count as Other
	Late     int64            // answers that nobody waited for any more
}

// Other is what codes are counted as that the bus doesn't use itself.
const Other topics.Code = "Other"

// Stats takes a snapshot.
func (c *Calls) Stats() Stats { return c.table.stats() }

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
	for _, code := range append(topics.Codes(), Other) {
		counter("ended_total", "Commands that were answered, by the answer's code.", prometheus.Labels{"code": string(code)},
			func(s Stats) int64 { return s.Ended[string(code)] })
	}
	counter("late_total", "Answers that nobody waited for any more: second ones, and those after the time was over.", nil, func(s Stats) int64 { return s.Late })
}

// remembered is how many ended calls are known again when they are sent again.
const remembered = 4096

// table holds the calls under way. Whoever takes a call out of it, once, answers.
type table struct {
	mu     sync.Mutex
	calls  map[string]*entry            // by id
	asked  map[string]map[string]*entry // by client that was asked, and id
	from   *quota.Quota                 // calls by client that asked
	users  *quota.Quota                 // and by its user
	keys   map[uint64]int               // keys of calls, under way and ended of late
	recent []uint64                     // keys of those that have ended, oldest first
	count  Stats
}

type entry struct {
	*call
	timer *time.Timer
	left  int // clients that were asked and are still connected
}

func newTable(l Limits) table {
	return table{
		calls: make(map[string]*entry), asked: make(map[string]map[string]*entry),
		from: quota.New("commands under way", "client", quota.Limit{Most: int64(l.Client), Setting: "limits.commands.client"}, quota.Limit{}),
		users: quota.New("commands under way", "user", quota.Limit{Most: int64(l.All+1) / 2, Setting: "half of limits.commands.all"},
			quota.Limit{Most: int64(l.All), Setting: "limits.commands.all"}),
		keys: make(map[uint64]int), count: Stats{Ended: make(map[string]int64)},
	}
}

// begin puts a call in; expire is called when its time is over.
func (t *table) begin(x *call, wait time.Duration, expire func()) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.from.Check(x.from, 1); err != nil {
		return err
	}
	if err := t.users.Take(x.user, 1); err != nil {
		return err
	}
	t.from.Add(x.from, 1)
	e := &entry{call: x, timer: time.AfterFunc(wait, expire), left: len(x.asked)}
	t.calls[x.id] = e
	for _, client := range x.asked {
		if t.asked[client] == nil {
			t.asked[client] = make(map[string]*entry)
		}
		t.asked[client][x.id] = e
	}
	return nil
}

func (t *table) find(id string) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.calls[id]; e != nil {
		return e.call
	}
	return nil
}

// end takes a call out; nil if it is not there any more.
func (t *table) end(id string) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.calls[id]
	if e == nil {
		return nil
	}
	e.timer.Stop()
	delete(t.calls, id)
	t.from.Add(e.from, -1)
	t.users.Add(e.user, -1)
	for _, client := range e.call.asked {
		delete(t.asked[client], id)
		if len(t.asked[client]) == 0 {
			delete(t.asked, client)
		}
	}
	return e.call
}

// left takes note that a client has gone, and lists the calls that nobody has now.
func (t *table) left(client string) (ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.asked[client] {
		if e.left--; e.left == 0 {
			ids = append(ids, id)
		}
	}
	delete(t.asked, client)
	slices.Sort(ids)
	return ids
}

// knows says whether a call with the key is under way, or has ended of late.
func (t *table) knows(key uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keys[key] > 0
}

// taken and settled are called once for each call: at its beginning, and at its end.
func (t *table) taken(x *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.Taken++
	if x.key != 0 {
		t.keys[x.key]++
	}
}

func (t *table) late() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.Late++
}

func (t *table) settled(x *call, code topics.Code) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(topics.Codes(), code) {
		code = Other
	}
	t.count.Ended[string(code)]++
	if x.key == 0 {
		return
	}
	if t.recent = append(t.recent, x.key); len(t.recent) > remembered {
		oldest := t.recent[0]
		t.recent = t.recent[1:]
		if t.keys[oldest]--; t.keys[oldest] == 0 {
			delete(t.keys, oldest)
		}
	}
}

func (t *table) stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.count
	s.UnderWay, s.Ended = len(t.calls), maps.Clone(s.Ended)
	return s
}

// call is one command and whoever asked. It doesn't change once it is in the table.
type call struct {
	id           string // unguessable: knowing it is having been asked
	node, device string
	topic        string
	from, user   string   // the client that asked, and its user; empty: the other end of the link
	key          uint64   // the same when the client sends the publish again; 0: it can't
	asked        []string // the clients that were asked
	reply        func(broker.Message)

	// what its answer is to have
	response    string
	correlation []byte
	qos         byte
}

// maxCorrelation bounds what a call keeps of its publish.
const maxCorrelation = 4096

// newCall copies what it keeps, or each call under way would keep a whole packet.
func (c *Calls) newCall(a topics.Address, m broker.Message, reply func(broker.Message)) *call {
	x := &call{
		node: strings.Clone(a.Node), device: strings.Clone(a.Device), topic: strings.Clone(m.Topic),
		from: m.Publisher.ClientID, user: m.Publisher.User, reply: reply, response: strings.Clone(m.Props.ResponseTopic), qos: m.QoS,
		correlation: bytes.Clone(m.Props.Correlation),
	}
	if m.QoS > 0 {
		x.key = maphash.Comparable(c.seed, [3]string{x.from, x.topic, string(m.Props.Correlation)})
	}
	return x
}

// mayConcern saves most topics from being parsed.
func mayConcern(topic string) bool {
	path := topic[:max(0, strings.LastIndexByte(topic, '/'))]
	return strings.HasSuffix(path, "/commands") || strings.HasSuffix(path, "/answers") || strings.HasSuffix(topic, "/sync/clock")
}

// namesCommands says whether a filter that matches a command's topic,
// v1/nodes/{node}/devices/{device}/commands/{name}, says so.
func namesCommands(filter string) bool {
	levels := strings.SplitN(filter, "/", 7)
	return len(levels) > 5 && levels[5] == "commands"
}

// wait is how long a call with that message expiry waits for its answer.
func waitOf(l Limits, expiry uint32) time.Duration {
	if expiry == 0 {
		return l.Timeout
	}
	return min(time.Duration(expiry)*time.Second, l.Longest)
}

// forwarded is the command for whoever executes it.
func (x *call) forwarded(m broker.Message, wait time.Duration) broker.Message {
	m.QoS, m.Retain, m.Again = 0, false, false
	m.Props.ResponseTopic = topics.Address{Node: x.node, Kind: topics.KindAnswer, Device: x.device, Name: x.id}.String()
	m.Props.Correlation = nil
	m.Props.Expiry = uint32((wait + time.Second - 1) / time.Second)
	return m
}

// answered is the executor's answer for the asker, and its code: the executor's own,
// or what follows from there being an error.
func (x *call) answered(m broker.Message) (broker.Message, topics.Code) {
	var code topics.Code
	failed := false
	var rest []broker.UserProperty
	for _, p := range m.Props.User {
		if p.Key == topics.PropCode {
			code = cmp.Or(code, topics.Code(p.Value))
			continue
		}
		failed = failed || p.Key == topics.PropError
		rest = append(rest, p)
	}
	if code == "" && failed {
		code = topics.Failed
	}
	code = cmp.Or(code, topics.OK)
	r := x.result(m.Payload)
	r.Props.ContentType, r.Props.PayloadFormat = m.Props.ContentType, m.Props.PayloadFormat
	r.Props.User = slices.Concat([]broker.UserProperty{{Key: topics.PropCode, Value: string(code)}}, rest)
	return r, code
}

// ended is the answer in the executor's place.
func (x *call) ended(e *ending) broker.Message {
	r := x.result(nil)
	r.Props.User = []broker.UserProperty{{Key: topics.PropCode, Value: string(e.code)}, {Key: topics.PropError, Value: e.err.Error()}}
	return r
}

func (x *call) result(payload []byte) broker.Message {
	return broker.Message{
		Topic: x.response, Payload: payload, QoS: x.qos, Props: broker.Properties{Correlation: x.correlation},
	}
}

// size is what a message brings along, without what MQTT and the bus put around it.
func size(m broker.Message) int {
	n := len(m.Payload) + len(m.Props.ContentType)
	for _, p := range m.Props.User {
		n += len(p.Key) + len(p.Value)
	}
	return n
}
