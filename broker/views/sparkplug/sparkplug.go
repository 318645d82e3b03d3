// SPDX-License-Identifier: Apache-2.0

// Package sparkplug shows a node and its devices as an edge node of Sparkplug B 3.0 and the devices of that: births with all metrics, data on
// change, deaths; and it takes what hosts command.
//
// It never publishes a value that hasn't changed, and nothing but births, data and deaths: no template, no data set, no record of a host.
//
//	sparkplug.go  View: the session of an edge node, from its birth to its death
//	device.go     a device: its metrics, its birth and its data
//	host.go       what hosts say: commands, and the state of the primary host
package sparkplug

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

// Options are the settings of the view.
type Options struct {
	Group       string // the group ID
	EdgeNode    string // the edge node ID: the node's name
	PrimaryHost string // the host ID of the primary host application; empty: births and data don't wait for one
	Aliases     bool   // data has a number instead of each metric's name
}

// View is an edge node. It has one connection.
type View struct {
	o       Options
	devices map[string]*device

	session   uint8 // bdSeq: 0 in the first connection
	seq       uint8 // of the next message
	settled   bool  // every device is known
	online    bool  // the node is: on the hub it may not be
	born      bool
	host      hostState
	nextAlias uint64
	rebirths  rebirthLimit

	// toldUntil is the time until which a host has been told what happened; zero: it never was. It outlives connections: what a host has missed
	// is told it after the next birth.
	toldUntil time.Time
}

// New makes a view.
func New(o Options) *View { return &View{o: o} }

const (
	namespace     = "spBv1.0/"
	rebirthMetric = "Node Control/Rebirth"
	sessionMetric = "bdSeq"

	// lossTime is how long messages may have been lost before a lost connection is noticed: what happened in it is told again.
	lossTime = time.Minute
	// maxRebirths is how often hosts have the edge node born again in rebirthTime. Who asks for more gets one after that time: a storm of requests
	// must not keep the edge node from all else.
	maxRebirths = 3
	rebirthTime = 10 * time.Second

	// maxPastMetrics are those of a message about the past.
	maxPastMetrics = 500
)

// Connect implements views.View.
func (v *View) Connect(n uint64) views.Connection {
	*v = View{o: v.o, devices: map[string]*device{}, toldUntil: v.toldUntil, session: uint8(n - 1), host: hostState{online: v.o.PrimaryHost == ""}}
	will := v.death()
	filters := []string{v.topic("NCMD", ""), v.topic("DCMD", "+")}
	if v.o.PrimaryHost != "" {
		filters = append(filters, namespace+"STATE/"+v.o.PrimaryHost)
	}
	return views.Connection{Will: &will, Filters: filters}
}

// Next implements views.View.
func (v *View) Next(at time.Time, e views.Event) (actions []views.Action) {
	switch e := e.(type) {
	case *views.DeviceChanged:
		actions = v.changeDevice(at, e)
	case *views.NodeChanged:
		actions = v.changeNode(at, e)
	case *views.Settled:
		v.settled = true
		actions = v.bear(at)
	case *views.Received:
		actions = v.hear(at, e.Message)
	case *views.Past:
		actions = v.tellPast(at, e)
	case *views.Ending:
		actions = v.end()
	}
	if v.born && v.rebirths.owed && v.rebirths.allow(at) {
		actions = append(actions, v.bear(at)...)
	}
	if v.born {
		v.toldUntil = at
	}
	return actions
}

// rebirthLimit counts the births that hosts have asked for.
type rebirthLimit struct {
	since time.Time
	count int
	owed  bool // one was asked for too soon
}

func (l *rebirthLimit) allow(at time.Time) bool {
	if at.Sub(l.since) >= rebirthTime {
		l.since, l.count = at, 0
	}
	if l.owed = l.count >= maxRebirths; l.owed {
		return false
	}
	l.count++
	return true
}

// topic is where messages of a kind are; device is empty for those of the edge node.
func (v *View) topic(kind, device string) string {
	t := namespace + v.o.Group + "/" + kind + "/" + v.o.EdgeNode
	if device != "" {
		t += "/" + device
	}
	return t
}

// death is the message that says that the edge node is gone: of the will, and before it leaves. It has no number in the sequence.
func (v *View) death() views.Message {
	return views.Message{Topic: v.topic("NDEATH", ""), QoS: 1, Payload: sparkplug.Payload{Seq: -1, Metrics: []sparkplug.Metric{v.sessionNumber()}}.Append(nil)}
}

func (v *View) sessionNumber() sparkplug.Metric {
	return valueOf(sessionMetric, sparkplug.TypeInt64, strconv.Itoa(int(v.session)))
}

// publish publishes a message with the next number.
func (v *View) publish(at time.Time, kind, device string, metrics []sparkplug.Metric) views.Action {
	p := sparkplug.Payload{Timestamp: unixMillis(at), Seq: int(v.seq), Metrics: metrics}
	v.seq++
	return &views.Publish{Message: views.Message{Topic: v.topic(kind, device), Payload: p.Append(nil)}}
}

// bear says everything anew, if everything is known and the primary host is there.
func (v *View) bear(at time.Time) (actions []views.Action) {
	if !v.settled || !v.online || !v.host.online {
		return nil
	}
	again := v.born
	v.born, v.seq = true, 0
	session, rebirth := v.sessionNumber(), valueOf(rebirthMetric, sparkplug.TypeBoolean, "false")
	session.Timestamp, rebirth.Timestamp = unixMillis(at), unixMillis(at)
	actions = append(actions, v.publish(at, "NBIRTH", "", []sparkplug.Metric{session, rebirth}))
	names := slices.Sorted(maps.Keys(v.devices))
	for _, name := range names {
		if d := v.devices[name]; d.isThere() {
			actions = append(actions, v.bearDevice(at, d))
		}
	}
	if again || v.toldUntil.IsZero() {
		return actions
	}
	for _, name := range names {
		if v.devices[name].born {
			actions = append(actions, &views.Replay{Node: v.o.EdgeNode, Device: name, Since: v.toldUntil.Add(-lossTime)})
		}
	}
	return actions
}

// changeNode takes whether the node is there. The devices of one that the hub doesn't hear of are dead with it, until its next birth.
func (v *View) changeNode(at time.Time, e *views.NodeChanged) []views.Action {
	was := v.online
	v.online = e.Node.Online && !e.Gone
	switch {
	case !was && v.online:
		return v.bear(at)
	case was && !v.online && v.born:
		return append(v.end(), &views.Reconnect{})
	}
	return nil
}

// end says that the edge node is gone.
func (v *View) end() []views.Action {
	if !v.born {
		return nil
	}
	v.born = false
	return []views.Action{&views.Publish{Message: v.death()}}
}

func (v *View) bearDevice(at time.Time, d *device) views.Action {
	d.born = true
	return v.publish(at, "DBIRTH", d.name, d.birth(at))
}

// changeDevice takes what a device is now, and says what of it is new.
func (v *View) changeDevice(at time.Time, e *views.DeviceChanged) []views.Action {
	name := e.Device.Name()
	d := v.devices[name]
	if e.Gone {
		delete(v.devices, name)
		return v.buryDevice(at, d)
	}
	other := false // it has other metrics than before
	if d == nil {
		d = &device{name: name}
		v.devices[name] = d
	}
	if e.Whole || d.metrics == nil {
		other = d.describe(v, e.Device)
	}
	changed := d.take(e, other)
	switch {
	case !v.born:
		return nil
	case !d.isThere():
		return v.buryDevice(at, d)
	case other || !d.born:
		return []views.Action{v.bearDevice(at, d)}
	case len(changed) == 0:
		return nil
	}
	return []views.Action{v.publish(at, "DDATA", name, d.data(at, changed))}
}

func (v *View) buryDevice(at time.Time, d *device) []views.Action {
	if d == nil || !d.born || !v.born {
		return nil
	}
	d.born = false
	return []views.Action{v.publish(at, "DDEATH", d.name, nil)}
}

// tellPast says what a device's metrics were while no host heard of it.
func (v *View) tellPast(at time.Time, e *views.Past) (actions []views.Action) {
	d := v.devices[e.Device.Name()]
	if d == nil || !d.born || !v.born {
		return nil
	}
	var metrics []sparkplug.Metric
	for _, s := range e.Samples {
		i, ok := d.index[s.Property]
		if !ok {
			continue
		}
		past := d.metrics[i]
		if past.known == s.Known && past.at == unixMillis(s.At) {
			continue // it is so now
		}
		past.text, past.known, past.at, past.quality, past.told = s.Text, s.Known, unixMillis(s.At), sparkplug.QualityGood, sparkplug.QualityGood
		if !s.Known {
			past.quality = sparkplug.QualityBad
		}
		m := past.metric(at)
		m.Type, m.Historical = sparkplug.TypeUnspecified, true
		metrics = append(metrics, m)
	}
	for part := range slices.Chunk(metrics, maxPastMetrics) {
		actions = append(actions, v.publish(at, "DDATA", d.name, part))
	}
	return actions
}

func unixMillis(at time.Time) uint64 { return uint64(max(at.UnixMilli(), 0)) }
