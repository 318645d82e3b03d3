// SPDX-License-Identifier: Apache-2.0

// Package uns shows the devices' values in a unified namespace: one retained message a property, below levels such as the site, the area and
// the line, which the labels of the Device and its node say. Nobody can set anything by it.
//
//	uns.go   View: which Device is at which path, and what is said of its values
//	path.go  the path of a Device, and the check of many of them without a broker
package uns

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are the settings of the view.
type Options struct {
	Levels PathLevels
	JSON   bool   // an object with value, time and quality instead of the bare value
	Origin string // who publishes: the user property origin of each message
}

// View is a unified namespace.
type View struct {
	o     Options
	nodes map[string]views.Node
	at    map[string]devicePlace // of each Device, by node and name
	paths map[string][]string    // the Devices at each path, the first of them shown
}

// devicePlace is where a Device is.
type devicePlace struct {
	path    string
	created time.Time
	name    string // with the namespace, for people
}

// New makes a view.
func New(o Options) *View { return &View{o: o} }

// Connect implements views.View.
func (v *View) Connect(uint64) views.Connection {
	v.nodes, v.at, v.paths = map[string]views.Node{}, map[string]devicePlace{}, map[string][]string{}
	return views.Connection{
		Retained: []string{v.o.Levels.Root + "/#"},
		Owns: func(m views.Message) bool {
			return m.Origin == v.o.Origin && strings.HasPrefix(m.Topic, v.o.Levels.Root+"/")
		},
	}
}

// Next implements views.View.
func (v *View) Next(_ time.Time, e views.Event) []views.Action {
	switch e := e.(type) {
	case *views.NodeChanged:
		if v.nodes[e.Node.Name] = e.Node; e.Gone {
			delete(v.nodes, e.Node.Name)
		}
	case *views.DeviceChanged:
		key := e.Device.Node + "/" + e.Device.Name()
		if e.Gone {
			return v.leave(key)
		}
		var actions []views.Action
		if e.Whole {
			actions = v.settle(key, e.Device)
		}
		if v.shows(key) {
			actions = append(actions, v.say(key, e)...)
		}
		return actions
	}
	return nil
}

// shows reports whether a Device is the one that is shown at its path.
func (v *View) shows(key string) bool {
	list := v.paths[v.at[key].path]
	return len(list) > 0 && list[0] == key
}

// settle puts a Device at its path, and says who can't be shown there any more, or can again.
func (v *View) settle(key string, d *views.Device) (actions []views.Action) {
	now := devicePlace{path: v.o.Levels.Path(v.nodes[d.Node].Labels, d.Object), name: cmp.Or(d.Object.Metadata.Namespace, resource.DefaultNamespace) + "/" + d.Name()}
	if at := d.Object.Metadata.CreationTimestamp; at != nil {
		now.created = *at
	}
	if before, there := v.at[key]; there && before != now {
		actions = v.leave(key)
	}
	if v.at[key] = now; slices.Contains(v.paths[now.path], key) {
		return actions
	}
	first := append([]string{}, v.paths[now.path]...)
	list := append(v.paths[now.path], key)
	slices.SortFunc(list, v.compare)
	v.paths[now.path] = list
	switch {
	case list[0] != key: // an earlier one is shown
		actions = append(actions, v.reject(key, list[0]))
	case len(first) > 0: // it is the earlier one itself: the other's messages are cleared when all is told anew
		actions = append(actions, v.reject(first[0], key), &views.Repeat{})
	}
	return actions
}

// compare says which of two Devices was made earlier.
func (v *View) compare(a, b string) int {
	return cmp.Or(v.at[a].created.Compare(v.at[b].created), strings.Compare(a, b))
}

func (v *View) reject(key, shown string) views.Action {
	node, device, _ := strings.Cut(key, "/")
	return &views.Reject{Node: node, Device: device, Reason: "its path " + v.at[key].path + " is that of the Device " + v.at[shown].name + ", which was made earlier: give one of them another label"}
}

// leave takes a Device from its path. The next one there is shown instead.
func (v *View) leave(key string) (actions []views.Action) {
	at, there := v.at[key]
	if !there {
		return nil
	}
	shown := v.shows(key)
	list := slices.DeleteFunc(v.paths[at.path], func(other string) bool { return other == key })
	delete(v.at, key)
	if v.paths[at.path] = list; len(list) == 0 {
		delete(v.paths, at.path)
	}
	node, device, _ := strings.Cut(key, "/")
	if !shown {
		return []views.Action{&views.Reject{Node: node, Device: device}}
	}
	if len(list) > 0 {
		node, device, _ = strings.Cut(list[0], "/")
		return []views.Action{&views.Reject{Node: node, Device: device}, &views.Repeat{}}
	}
	return nil
}

// say publishes the values of a Device that have changed.
func (v *View) say(key string, e *views.DeviceChanged) (actions []views.Action) {
	names := e.Properties
	if e.Whole || e.State && v.o.JSON { // the state is part of each value's quality
		names = slices.Sorted(maps.Keys(e.Device.Values))
	}
	for _, name := range names {
		p, known := e.Device.Model.Property(name)
		if !known {
			continue
		}
		m := views.Message{Topic: v.at[key].path + "/" + name, Payload: v.payload(p, e.Device), QoS: 1, Retain: true, Origin: v.o.Origin}
		actions = append(actions, &views.Publish{Message: m})
	}
	return actions
}

// timedValue is a value with what a reader must know of it.
type timedValue struct {
	Value   any    `json:"value"` // null: there is none
	Time    string `json:"timestamp,omitempty"`
	Quality string `json:"quality"` // good, stale or bad
	Unit    string `json:"unit,omitempty"`
}

// payload is what is retained of a property; empty: nothing.
func (v *View) payload(p resource.Property, d *views.Device) []byte {
	is := d.Values[p.Name]
	if !v.o.JSON {
		return []byte(is.Text)
	}
	if !is.Known && is.Problem == nil {
		return nil
	}
	out := timedValue{Quality: "good", Unit: p.Unit}
	switch {
	case is.Problem != nil && is.Problem.Code != resource.ValueUnknown, d.State == resource.Offline, d.State == resource.Unknown:
		out.Quality = "stale" // it was so once
	case !is.Known:
		out.Quality = "bad"
	}
	if is.Known {
		out.Value = jsonValue(p.Type, is.Text)
	}
	if !is.At.IsZero() {
		out.Time = is.At.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	b, err := json.Marshal(out)
	if err != nil { // an object or array that isn't JSON, of a mapper that doesn't keep to the model
		out.Value = is.Text
		b, _ = json.Marshal(out)
	}
	return b
}

// jsonValue is a value in JSON: what is JSON by its type stays as it is.
func jsonValue(t resource.DataType, text string) any {
	switch t {
	case resource.TypeInt, resource.TypeFloat, resource.TypeDouble, resource.TypeBoolean, resource.TypeObject, resource.TypeArray:
		if json.Valid([]byte(text)) {
			return json.RawMessage(text)
		}
	}
	return text
}
