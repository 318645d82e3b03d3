// SPDX-License-Identifier: Apache-2.0

// Package views is what views of the tree are made of. A view speaks of the tree's devices in another vocabulary, such as Home Assistant's,
// to a peer: the clients of one broker, which may be the tree's own or any other. It takes back what that vocabulary can ask for.
//
// A view does no I/O and has no clock. Package runner has the connection, the rights and the disk; each view is a package of its own, which
// imports this one and topics alone. Package viewtest runs the text files that views are tested by.
//
//	view.go      View, Connection, events and actions
//	retained.go  which retained messages of a view the peer has, and which of them are to be cleared
//	tree.go      the Devices and nodes that topics of the tree tell of
//	exchange.go  one connection's view, and what it has said
package views

import (
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// A View speaks of devices in another vocabulary. The same events give the same actions. What it remembers ends with its connection.
type View interface {
	// Connect begins the connection with the number n, which is counted over restarts. Every Device and node is told anew, and then Settled.
	Connect(n uint64) Connection
	// Next says what follows from an event, which happens at the given time.
	Next(at time.Time, e Event) []Action
}

// Connection is what a view needs of a connection to its peer. It begins without a session.
type Connection struct {
	// Will is published when the connection is lost; nil: nothing.
	Will *Message
	// Filters are what the view listens to, at QoS 1. They are granted before the first event.
	Filters []string
	// Retained are filters that cover every retained message that the view publishes.
	Retained []string
	// Owns says which retained messages are the view's own, by what is in them: nobody remembers them over a restart.
	Owns func(Message) bool
}

// Message is an application message at the peer's broker.
type Message struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool // it is, or was, retained
	// Origin is who has published it: the user property origin. A view marks with it what bears no mark in itself.
	Origin string
}

// Node is a node as the tree tells of it.
type Node struct {
	Name   string
	Labels map[string]string // those of the Node on the hub
	Online bool              // on the node itself: always
}

// Device is a Device with what is known of it. A view doesn't change it, and doesn't keep it beyond a call of Next.
type Device struct {
	Node   string
	Object *resource.Device      // its description: no desired values, no status
	Model  *resource.DeviceModel // with the Device's own visitors and alarms
	State  string                // resource.Online, Offline or Unknown; empty: it was not reported
	Values map[string]Value      // by property: those that have any of it
}

// Name is the Device's name.
func (d *Device) Name() string { return d.Object.Metadata.Name }

// Title is the Device's name for people.
func (d *Device) Title() string {
	if d.Object.Spec.Title != "" {
		return d.Object.Spec.Title
	}
	return d.Name()
}

// Value is what is known of a property.
type Value struct {
	Text    string            // the reported value, in the form of the property's type
	Known   bool              // there is one
	At      time.Time         // when the device had it
	Problem *resource.Problem // why it can't be read; nil: it can
	Alarms  []resource.RaisedAlarm
}

// Event is something that a view is told: *DeviceChanged, *NodeChanged, *Happened, *Received, *Settled, *Refused, *Past or *Ending.
type Event interface{ event() }

// Action is something that a view wants done: *Publish, *Set, *Call, *Replay, *Reject, *Repeat or *Reconnect.
type Action interface{ action() }

// DeviceChanged tells of a Device: of each at the beginning of a connection, and then of each that changes. Changes that come faster than the
// peer takes them are told as one.
type DeviceChanged struct {
	Device *Device
	// Whole: the Device is new to the view, or its description, its model or the labels of its node have changed. The view says everything
	// of it: retained messages that it published for the Device before, and doesn't publish now, are cleared.
	Whole      bool
	Properties []string // whose value, problem or alarms have changed
	State      bool     // the state has changed
	// Gone: there is no such Device any more, or the view isn't to show it. All retained messages that were published for it are cleared
	// besides what the view does. Device is as it was last.
	Gone bool
}

// NodeChanged tells of a node: of each at the beginning of a connection, before its Devices, and then of each that changes. The view says
// everything of the node itself: retained messages that it published because of it before, and doesn't publish now, are cleared. Gone: there is
// no such node any more.
type NodeChanged struct {
	Node Node
	Gone bool
}

// Happened tells of an event of the Device, such as the press of a button.
type Happened struct {
	Device  *Device
	Name    string
	Payload []byte
}

// Received tells of a message that came from the peer, by Connection.Filters.
type Received struct{ Message Message }

// Settled says that all was told once. Retained messages of the view that were not published since Connect are cleared then.
type Settled struct{}

// Refused says that a Set was refused, whole: nothing of it is desired.
type Refused struct {
	Device     *Device
	Properties []string
	Reason     string
}

// Past tells what a Device's properties were, as Replay has asked, the oldest first. Last: that was all.
type Past struct {
	Device  *Device
	Samples []Sample
	Last    bool
}

// Sample is the value that a property had from a time on.
type Sample struct {
	Property string
	Text     string
	Known    bool // false: it had none
	At       time.Time
}

// Ending says that the connection is about to end because the view is switched off or the program stops. What the view publishes now is
// sent before.
type Ending struct{}

// Publish publishes a message at the peer.
type Publish struct{ Message Message }

// Set asks for values of a Device's properties, all or none of them. An empty text clears a desired value.
type Set struct {
	Node, Device string
	Values       map[string]string
}

// Call calls a command of a Device. The answer is published at Reply; empty: nowhere.
type Call struct {
	Node, Device, Command string
	Payload               []byte
	Reply                 string
}

// Replay asks for what a Device's properties were since a time.
type Replay struct {
	Node, Device string
	Since        time.Time
}

// Reject says that the view can't show a Device, and why; an empty reason takes that back.
type Reject struct {
	Node, Device string
	Reason       string
}

// Repeat has the runner tell every Device and node anew, and then Settled, on the same connection.
type Repeat struct{}

// Reconnect ends the connection, after what was published before it, and begins another. The will is published.
type Reconnect struct{}

func (*DeviceChanged) event() {}
func (*NodeChanged) event()   {}
func (*Happened) event()      {}
func (*Received) event()      {}
func (*Settled) event()       {}
func (*Refused) event()       {}
func (*Past) event()          {}
func (*Ending) event()        {}

func (*Publish) action()   {}
func (*Set) action()       {}
func (*Call) action()      {}
func (*Replay) action()    {}
func (*Reject) action()    {}
func (*Repeat) action()    {}
func (*Reconnect) action() {}
