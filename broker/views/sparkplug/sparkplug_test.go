// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

// rig is a view between a small tree and a strict host.
type rig struct {
	t       require.TestingT
	view    *View
	host    *strictHost
	now     time.Time
	n       uint64
	tree    map[string]*views.Device
	online  bool // the node is
	sets    []*views.Set
	replays []*views.Replay
	again   int // how often the view wanted another connection
	ended   bool
	begun   bool // there was a connection
}

func newRig(t require.TestingT, o Options) *rig {
	o.Group, o.EdgeNode = "plant", "n1"
	return &rig{
		t: t, view: New(o), n: 1, now: time.UnixMilli(1_700_000_000_000), tree: map[string]*views.Device{}, online: true,
		host: &strictHost{t: t, group: "plant", node: "n1", aliases: o.Aliases},
	}
}

// model is a model with a property of each type; version changes it.
func model(version int) *resource.DeviceModel {
	low, high := -1500.0, 1500.0
	m := &resource.DeviceModel{Spec: resource.DeviceModelSpec{Properties: []resource.Property{
		{Name: "power", AccessMode: resource.ReadWrite, Enum: []resource.Value{"ON", "OFF"}},
		{Name: "speed", Type: resource.TypeInt, AccessMode: resource.ReadWrite, Minimum: &low, Maximum: &high, Unit: "1/min"},
		{Name: "level", Type: resource.TypeFloat, Title: "Level"},
		{Name: "energy", Type: resource.TypeDouble, AccessMode: resource.ReadWrite},
		{Name: "ready", Type: resource.TypeBoolean, AccessMode: resource.ReadWrite},
		{Name: "image", Type: resource.TypeBytes},
		{Name: "recipe", Type: resource.TypeObject},
	}}}
	for i := range version {
		m.Spec.Properties = append(m.Spec.Properties, resource.Property{Name: fmt.Sprint("more", i), Type: resource.TypeInt})
	}
	return m
}

// connect begins a connection, as the runner does: all is told, then Settled.
func (r *rig) connect() {
	r.connectOnly()
	r.tell(&views.NodeChanged{Node: views.Node{Name: "n1", Online: r.online}})
	for _, name := range slices.Sorted(maps.Keys(r.tree)) {
		r.tell(&views.DeviceChanged{Device: r.tree[name], Whole: true})
	}
	r.tell(&views.Settled{})
}

func (r *rig) connectOnly() {
	r.ended, r.begun = false, true
	r.host.connect(r.view.Connect(r.n))
	require.Equal(r.t, strconv.Itoa(int((r.n-1)%256)), r.host.session)
	r.n++
}

func (r *rig) tell(e views.Event) {
	if !r.begun {
		return
	}
	r.now = r.now.Add(time.Millisecond)
	r.host.now = unixMillis(r.now)
	for _, a := range r.view.Next(r.now, e) {
		switch a := a.(type) {
		case *views.Publish:
			r.host.take(a.Message)
		case *views.Set:
			r.sets = append(r.sets, a)
		case *views.Replay:
			r.replays = append(r.replays, a)
		case *views.Reconnect:
			r.again++
			r.ended = true
		}
	}
}

func (r *rig) device(name string) *views.Device {
	d := r.tree[name]
	if d == nil {
		d = &views.Device{
			Node: "n1", Object: &resource.Device{Metadata: resource.Meta{Name: name}}, Model: model(0), State: resource.Online, Values: map[string]views.Value{},
		}
		r.tree[name] = d
		r.tell(&views.DeviceChanged{Device: d, Whole: true, State: true})
	}
	return d
}

func (r *rig) set(name, property, text string) {
	d := r.device(name)
	d.Values[property] = views.Value{Text: text, Known: true, At: r.now.Add(-time.Second)}
	r.tell(&views.DeviceChanged{Device: d, Properties: []string{property}})
}

func (r *rig) state(name, state string) {
	d := r.device(name)
	d.State = state
	r.tell(&views.DeviceChanged{Device: d, State: true})
}

func (r *rig) hear(kind, device string, metrics ...sparkplug.Metric) {
	r.tell(&views.Received{Message: views.Message{Topic: r.host.topic(kind, device), Payload: sparkplug.Payload{Timestamp: 1, Seq: -1, Metrics: metrics}.Append(nil)}})
}

func (r *rig) primaryHost(payload string) {
	r.tell(&views.Received{Message: views.Message{Topic: "spBv1.0/STATE/scada", Payload: []byte(payload), Retain: true}})
}

// check holds what the host knows against the tree.
func (r *rig) check() {
	want := map[string]map[string]string{}
	for name, d := range r.tree {
		if d.State == resource.Offline {
			continue
		}
		metrics := map[string]string{}
		for _, p := range d.Model.Spec.Properties {
			v := d.Values[p.Name]
			quality := 192
			switch {
			case v.Problem != nil && v.Problem.Code != resource.ValueUnknown, v.Known && d.State == resource.Unknown:
				quality = 500
			case !v.Known:
				quality = 0
			}
			metrics[p.Name] = fmt.Sprint(v.Text, v.Known, quality)
		}
		want[name] = metrics
	}
	got := map[string]map[string]string{}
	for device, list := range r.host.known {
		if device == "" {
			continue
		}
		metrics := map[string]string{}
		for _, m := range list {
			metrics[m.name] = fmt.Sprint(m.text, !m.null, m.quality)
		}
		got[device] = metrics
	}
	require.Equal(r.t, want, got)
}

func value(t *testing.T, name string, typ sparkplug.DataType, text string) sparkplug.Metric {
	t.Helper()
	m, err := sparkplug.Value(typ, text)
	require.NoError(t, err)
	m.Name = name
	return m
}

func TestAnEdgeNodeIsBornWithItsDevicesAndDiesWithItsConnection(t *testing.T) {
	r := newRig(t, Options{})
	r.device("lamp").Values["power"] = views.Value{Text: "ON", Known: true, At: r.now}
	r.device("pump")
	r.connectOnly()
	for _, name := range []string{"pump", "lamp"} {
		r.tell(&views.DeviceChanged{Device: r.tree[name], Whole: true})
	}
	r.tell(&views.NodeChanged{Node: views.Node{Name: "n1", Online: true}})
	require.Zero(t, r.host.messages, "nothing is said before all is known")
	r.tell(&views.Settled{})
	require.Equal(t, 3, r.host.messages)
	r.check()

	r.set("lamp", "level", "4.5")
	r.set("lamp", "level", "4.5")
	require.Equal(t, 4, r.host.messages, "the same value again is no change")
	r.state("lamp", resource.Offline)
	r.check()
	r.set("lamp", "level", "5") // of a device that isn't there nothing is said
	require.Equal(t, 5, r.host.messages)
	r.state("lamp", resource.Online)
	r.check()
	r.tell(&views.DeviceChanged{Device: r.tree["pump"], Gone: true})
	delete(r.tree, "pump")
	r.check()

	r.tell(&views.Ending{})
	require.True(t, r.host.dead)
	r.set("lamp", "level", "6")
	r.tell(&views.Ending{}) // once is enough
}

func TestValuesHaveTheTypesOfTheModelAndWhatCannotBeReadIsNull(t *testing.T) {
	r := newRig(t, Options{})
	r.device("a")
	r.connect()
	for property, text := range map[string]string{"power": "ON", "speed": "-3", "level": "0.2301", "energy": "1e-300", "ready": "true", "image": "AP8=", "recipe": `{"a":1}`} {
		r.set("a", property, text)
	}
	r.check()
	want := map[string]sparkplug.DataType{
		"power": sparkplug.TypeString, "speed": sparkplug.TypeInt64, "level": sparkplug.TypeFloat, "energy": sparkplug.TypeDouble, "ready": sparkplug.TypeBoolean,
		"image": sparkplug.TypeBytes, "recipe": sparkplug.TypeString,
	}
	for name, typ := range want {
		require.Equal(t, typ, r.host.known["a"][name].typ, name)
	}

	d := r.tree["a"]
	d.Values["level"] = views.Value{Problem: &resource.Problem{Code: resource.ValueUnknown}}
	r.tell(&views.DeviceChanged{Device: d, Properties: []string{"level"}})
	r.check()
	d.Values["speed"] = views.Value{Text: "-3", Known: true, Problem: &resource.Problem{Code: resource.ValueUnread}}
	r.tell(&views.DeviceChanged{Device: d, Properties: []string{"speed"}})
	r.check()
	require.EqualValues(t, 500, r.host.known["a"]["speed"].quality)
	r.state("a", resource.Unknown) // nobody knows whether it is there: all it said is old
	r.check()
	require.EqualValues(t, 500, r.host.known["a"]["ready"].quality)

	r.set("a", "energy", "much") // of a mapper that doesn't keep to the model
	m := r.host.known["a"]["energy"]
	require.True(t, m.null)
	require.EqualValues(t, 0, m.quality)
}

func TestABirthTellsUnitsAndRanges(t *testing.T) {
	r := newRig(t, Options{})
	r.device("a")
	r.connectOnly()
	d := &device{name: "a"}
	require.True(t, d.describe(r.view, r.tree["a"]))
	require.False(t, d.describe(r.view, r.tree["a"]))
	said := map[string]string{}
	for _, m := range d.birth(r.now) {
		list, err := m.Properties()
		require.NoError(t, err)
		for _, p := range list {
			text, err := p.Text()
			require.NoError(t, err)
			said[m.Name+" "+p.Key] = text
		}
	}
	require.Equal(t, map[string]string{
		"power Quality": "0", "speed Quality": "0", "level Quality": "0", "energy Quality": "0", "ready Quality": "0", "image Quality": "0",
		"recipe Quality": "0", "speed engUnit": "1/min", "speed engLow": "-1500", "speed engHigh": "1500", "level documentation": "Level",
	}, said)
}

func TestARebirthSaysEverythingAnew(t *testing.T) {
	r := newRig(t, Options{})
	r.device("a")
	rebirth := value(t, "Node Control/Rebirth", sparkplug.TypeBoolean, "true")
	r.connectOnly()
	r.hear("NCMD", "", rebirth) // before the first birth: that is coming anyway
	require.Zero(t, r.host.messages)
	r.connect()
	r.set("a", "level", "4")
	count := r.host.messages
	r.hear("NCMD", "", value(t, "Node Control/Rebirth", sparkplug.TypeBoolean, "false"))
	r.hear("NCMD", "", value(t, "Node Control/Reboot", sparkplug.TypeBoolean, "true"))
	r.tell(&views.Received{Message: views.Message{Topic: r.host.topic("NCMD", ""), Payload: []byte("?")}})
	require.Equal(t, count, r.host.messages)
	r.hear("NCMD", "", rebirth)
	require.Equal(t, count+2, r.host.messages)
	require.Zero(t, r.host.seq-1, "the birth begins the sequence")
	r.check()
}

// Whoever sends at the broker can ask for births as often as he likes: some are given at once, and the rest is one after a while.
func TestAStormOfRequestsForBirthsIsOneAfterAWhile(t *testing.T) {
	r := newRig(t, Options{})
	r.device("a")
	r.connect()
	count := r.host.messages
	for range 1000 {
		r.hear("NCMD", "", value(t, rebirthMetric, sparkplug.TypeBoolean, "true"))
	}
	require.Equal(t, count+maxRebirths*2, r.host.messages)
	r.set("a", "level", "4")
	require.Equal(t, count+maxRebirths*2+1, r.host.messages, "it goes on meanwhile")
	r.now = r.now.Add(rebirthTime)
	r.set("a", "level", "5")
	require.Equal(t, count+maxRebirths*2+4, r.host.messages, "the value, and the births that are owed")
	r.set("a", "level", "6")
	require.Equal(t, count+maxRebirths*2+5, r.host.messages)
	r.check()
}

func TestACommandSetsWhatCanBeSet(t *testing.T) {
	for _, aliases := range []bool{false, true} {
		r := newRig(t, Options{Aliases: aliases})
		r.device("a")
		r.connect()
		level := value(t, "level", sparkplug.TypeFloat, "4")
		power, speed, energy, ready := value(t, "power", sparkplug.TypeString, "ON"), value(t, "speed", sparkplug.TypeDouble, "12"), value(t, "energy", sparkplug.TypeInt32, "7"), value(t, "ready", sparkplug.TypeBoolean, "true")
		if aliases {
			power.Alias, power.HasAlias, power.Name = r.host.known["a"]["power"].alias, true, ""
		}
		null := sparkplug.Metric{Name: "power", Null: true}
		r.hear("DCMD", "a", level, power, speed, energy, ready, null, value(t, "nothing", sparkplug.TypeInt8, "1"))
		require.Equal(t, []*views.Set{{Node: "n1", Device: "a", Values: map[string]string{"power": "ON", "speed": "12", "energy": "7", "ready": "true"}}}, r.sets)
		r.sets = nil
		r.hear("DCMD", "a", level)
		r.hear("DCMD", "b", power)
		r.tell(&views.Received{Message: views.Message{Topic: r.host.topic("DCMD", "a"), Retain: true, Payload: sparkplug.Payload{Seq: -1, Metrics: []sparkplug.Metric{power}}.Append(nil)}})
		r.state("a", resource.Offline)
		r.hear("DCMD", "a", power)
		require.Empty(t, r.sets)
	}
	require.Equal(t, "12", integerText("12"))
	require.Equal(t, "1000000", integerText("1e+06"))
	require.Equal(t, "1.5", integerText("1.5"))
	require.Equal(t, "9223372036854775807", integerText("9223372036854775807"))
}

func TestNothingIsSaidWithoutThePrimaryHost(t *testing.T) {
	r := newRig(t, Options{PrimaryHost: "scada"})
	r.device("a")
	r.connect()
	require.Contains(t, New(Options{Group: "plant", EdgeNode: "n1", PrimaryHost: "scada"}).Connect(0).Filters, "spBv1.0/STATE/scada")
	r.connect()
	require.Zero(t, r.host.messages)
	for _, payload := range []string{`{"online":true}`, `{"timestamp":5}`, "ONLINE", `{"online":"true","timestamp":5}`, `{"online":false,"timestamp":4}`} {
		r.primaryHost(payload)
	}
	r.tell(&views.Received{Message: views.Message{Topic: "spBv1.0/STATE/other", Payload: []byte(`{"online":true,"timestamp":50}`)}})
	require.Zero(t, r.host.messages)
	require.Zero(t, r.again, "an edge node that isn't born waits for the host where it is")
	r.primaryHost(`{"online":true,"timestamp":10}`)
	require.Equal(t, 2, r.host.messages)
	r.primaryHost(`{"online":false,"timestamp":9}`) // the will of an earlier connection
	r.primaryHost(`{"online":true,"timestamp":11}`)
	require.True(t, r.host.born)
	require.Equal(t, 2, r.host.messages)
	r.primaryHost(`{"online":false,"timestamp":11}`)
	require.True(t, r.host.dead)
	require.Equal(t, 1, r.again)
	left := r.now

	r.now = r.now.Add(time.Hour)
	r.connect()
	r.primaryHost(`{"online":false,"timestamp":11}`)
	require.Zero(t, r.host.messages)
	require.Empty(t, r.replays)
	r.primaryHost(`{"online":true,"timestamp":4000000}`)
	require.True(t, r.host.born)
	require.Len(t, r.replays, 1)
	require.Equal(t, "a", r.replays[0].Device)
	require.WithinDuration(t, left, r.replays[0].Since, lossTime+10*time.Millisecond)
	r.check()
}

// Whoever may publish there can say that the host is gone, from the far future. The host is heard again when it says otherwise.
func TestAStateOfTheFarFutureDoesNotSilenceTheHostForGood(t *testing.T) {
	r := newRig(t, Options{PrimaryHost: "scada"})
	r.device("a")
	r.connect()
	say := func(online bool, at time.Time) {
		r.primaryHost(fmt.Sprintf(`{"online":%t,"timestamp":%d}`, online, at.UnixMilli()))
	}
	say(true, r.now)
	require.True(t, r.host.born)
	say(false, r.now.AddDate(1000, 0, 0))
	require.True(t, r.host.dead)
	r.now = r.now.Add(time.Second)
	r.connect()
	say(false, r.now.AddDate(1000, 0, 0)) // the broker has kept it
	say(true, r.now.Add(-time.Hour))      // of an earlier connection
	require.Zero(t, r.host.messages)
	say(true, r.now)
	require.True(t, r.host.born)
}

func TestWhatNoHostHasHeardIsToldAsThePast(t *testing.T) {
	for _, aliases := range []bool{false, true} {
		r := newRig(t, Options{Aliases: aliases})
		r.set("a", "level", "3")
		r.connect()
		require.Empty(t, r.replays, "nothing is told of the time before the first birth")
		r.now = r.now.Add(time.Hour)
		r.connect()
		require.Len(t, r.replays, 1)
		r.replays = nil
		r.hear("NCMD", "", value(t, rebirthMetric, sparkplug.TypeBoolean, "true"))
		require.Empty(t, r.replays, "a rebirth is no loss")
		at := r.now.Add(-30 * time.Minute)
		is := r.tree["a"].Values["level"].At
		r.tell(&views.Past{Device: r.tree["a"], Samples: []views.Sample{
			{Property: "level", Text: "1", Known: true, At: at},
			{Property: "level", At: at.Add(time.Second)},
			{Property: "gone", Text: "1", Known: true, At: at},
			{Property: "level", Text: "3", Known: true, At: is},
		}, Last: true})
		require.Equal(t, []string{"level 1 false", "level  true"}, []string{pastText(r.host.past[0]), pastText(r.host.past[1])})
		require.Equal(t, unixMillis(at), r.host.past[0].at)
		require.Len(t, r.host.past, 2, "what is so now is no past")
		r.check()

		many := make([]views.Sample, maxPastMetrics+1)
		for i := range many {
			many[i] = views.Sample{Property: "level", Text: strconv.Itoa(i), Known: true, At: at.Add(time.Duration(i) * time.Millisecond)}
		}
		count := r.host.messages
		r.tell(&views.Past{Device: r.tree["a"], Samples: many, Last: true})
		require.Equal(t, count+2, r.host.messages)
		r.tell(&views.Ending{})
		r.tell(&views.Past{Device: r.tree["a"], Samples: many, Last: true})
	}
}

func pastText(m hostMetric) string { return fmt.Sprint(m.name, " ", m.text, " ", m.null) }

func TestOnTheHubAnEdgeNodeDiesWhenItsNodeIsGone(t *testing.T) {
	r := newRig(t, Options{})
	r.device("a")
	r.online = false
	r.connect()
	require.Zero(t, r.host.messages)
	r.tell(&views.NodeChanged{Node: views.Node{Name: "n1", Online: true}})
	require.True(t, r.host.born)
	r.tell(&views.NodeChanged{Node: views.Node{Name: "n1", Online: true, Labels: map[string]string{"a": "b"}}})
	r.tell(&views.NodeChanged{Node: views.Node{Name: "n1"}})
	require.True(t, r.host.dead)
	require.Equal(t, 1, r.again, "a birth with the same number would be of the same session")
}

func TestWhatAnIDMayBe(t *testing.T) {
	require.Empty(t, sparkplug.CheckID("Plant A"))
	for _, id := range []string{"", "a/b", "a+", "#"} {
		require.NotEmpty(t, sparkplug.CheckID(id), id)
	}
}

// Whatever happens, and in whatever order, each message keeps to the specification, and what a host knows is what the tree says.
func TestAHostKnowsTheTreeWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Aliases: rapid.Bool().Draw(t, "aliases")}
		if rapid.Bool().Draw(t, "primary") {
			o.PrimaryHost = "scada"
		}
		r := newRig(t, o)
		r.n = uint64(rapid.IntRange(1, 300).Draw(t, "n"))
		r.connect()
		names, clock := rapid.SampledFrom([]string{"a", "b", "c"}), 0
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			name := names.Draw(t, "device")
			switch what := rapid.IntRange(0, 12).Draw(t, "what"); what {
			case 0, 1, 2, 3:
				r.set(name, "level", strconv.Itoa(rapid.IntRange(0, 3).Draw(t, "level")))
			case 4:
				d := r.device(name)
				code := rapid.SampledFrom([]string{"", resource.ValueUnknown, resource.ValueStale, resource.ValueUnread}).Draw(t, "code")
				v := views.Value{Text: "1", Known: code != resource.ValueUnknown && code != resource.ValueStale, At: r.now}
				if !v.Known {
					v.Text = ""
				}
				if code != "" {
					v.Problem = &resource.Problem{Code: code}
				}
				d.Values["speed"] = v
				r.tell(&views.DeviceChanged{Device: d, Properties: []string{"speed", "nothing"}})
			case 5:
				r.state(name, rapid.SampledFrom([]string{resource.Online, resource.Offline, resource.Unknown, ""}).Draw(t, "state"))
			case 6:
				d := r.device(name)
				d.Model = model(rapid.IntRange(0, 2).Draw(t, "version"))
				r.tell(&views.DeviceChanged{Device: d, Whole: true})
			case 7:
				if d := r.tree[name]; d != nil {
					delete(r.tree, name)
					r.tell(&views.DeviceChanged{Device: d, Gone: true})
				}
			case 8:
				rebirth, _ := sparkplug.Value(sparkplug.TypeBoolean, "true")
				rebirth.Name = rebirthMetric
				r.hear("NCMD", "", rebirth)
			case 9:
				clock += rapid.IntRange(-1, 2).Draw(t, "later")
				online := rapid.Bool().Draw(t, "online")
				r.primaryHost(fmt.Sprintf(`{"online":%t,"timestamp":%d}`, online, clock))
			case 10:
				r.connect()
			case 11:
				r.tell(&views.Past{Device: r.device(name), Samples: []views.Sample{{Property: "level", Text: "9", Known: true, At: r.now.Add(-time.Hour)}}, Last: true})
			case 12:
				r.online = rapid.IntRange(0, 3).Draw(t, "node") > 0
				r.tell(&views.NodeChanged{Node: views.Node{Name: "n1", Online: r.online}})
			}
			if r.ended {
				require.True(t, r.host.dead, "the edge node says that it is gone before it leaves")
				r.connect()
			}
			require.Equal(t, r.host.born, r.view.born)
			if r.host.born {
				r.check()
			} else {
				require.True(t, !r.online || o.PrimaryHost != "", "it waits for nothing")
			}
		}
	})
}
