// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/edgebus/edgebus/topics"
)

// ModelEvent is something that a device tells once and then forgets. It is published on events/{name} of the device.
type ModelEvent struct {
	// Name is the name of the event, as in its topic: 1 to 253 characters of a–z, A–Z, 0–9, '-', '.' and '_'.
	Name string `json:"name"`
	// Title is the name of the event for people, such as Button. At most 128 characters.
	Title string `json:"title,omitempty"`
	// Description is for people.
	Description string `json:"description,omitempty"`
	// Type is the type of what the event says; string when empty.
	// +default=string
	Type DataType `json:"type,omitempty"`
	// Enum is all that the event may say, such as single and double; anything of its type when empty.
	Enum []Value `json:"enum,omitempty"`
}

// ModelCommand is something that a device does once when it is told. It is called on commands/{name} of the device.
type ModelCommand struct {
	// Name is the name of the command, as in its topic: 1 to 253 characters of a–z, A–Z, 0–9, '-', '.' and '_'.
	Name string `json:"name"`
	// Title is the name of the command for people, such as Begin anew. At most 128 characters.
	Title string `json:"title,omitempty"`
	// Description is for people.
	Description string `json:"description,omitempty"`
	// Input is what the command is called with; nothing when missing.
	Input *CommandInput `json:"input,omitempty"`
}

// CommandInput is the value that a command is called with: the payload.
type CommandInput struct {
	// Type is the type of the value; string when empty.
	// +default=string
	Type DataType `json:"type,omitempty"`
	// Minimum is the least value, for int, float and double; no limit when missing.
	Minimum *float64 `json:"minimum,omitempty"`
	// Maximum is the greatest value, for int, float and double; no limit when missing.
	Maximum *float64 `json:"maximum,omitempty"`
	// Enum are the only values that are allowed; any value when empty.
	Enum []Value `json:"enum,omitempty"`
}

// AlarmEvent is the name of the event of a device whose alarms change. No event of a model has it.
const AlarmEvent = "alarm"

// Event returns the event of that name.
func (m *DeviceModel) Event(name string) (ModelEvent, bool) {
	for i := range m.Spec.Events {
		if m.Spec.Events[i].Name == name {
			return m.Spec.Events[i], true
		}
	}
	return ModelEvent{}, false
}

// Command returns the command of that name.
func (m *DeviceModel) Command(name string) (ModelCommand, bool) {
	for i := range m.Spec.Commands {
		if m.Spec.Commands[i].Name == name {
			return m.Spec.Commands[i], true
		}
	}
	return ModelCommand{}, false
}

// Property is a property that has what the event says.
func (e ModelEvent) Property() Property { return Property{Name: e.Name, Type: e.Type, Enum: e.Enum} }

// Check reports whether the event may say payload.
func (e ModelEvent) Check(payload []byte) error {
	if len(payload) == 0 {
		return Errorf(Invalid, e.Name, "says nothing: the payload of an event is what it says")
	}
	return e.Property().Check(payload)
}

// Property is a property that has the values that the command takes.
func (c ModelCommand) Property() Property {
	p := Property{Name: c.Name}
	if i := c.Input; i != nil {
		p.Type, p.Minimum, p.Maximum, p.Enum = i.Type, i.Minimum, i.Maximum, i.Enum
	}
	return p
}

// Check reports whether the command may be called with payload.
func (c ModelCommand) Check(payload []byte) error {
	switch {
	case c.Input == nil && len(payload) > 0:
		return Errorf(Invalid, c.Name, "takes no input: the payload must be empty")
	case c.Input == nil:
		return nil
	case len(payload) == 0:
		return Errorf(Invalid, c.Name, "needs an input: the payload must be a value of the type %s", c.Property().dataType())
	}
	return c.Property().Check(payload)
}

// CheckCommand reports whether a command of the model may be called with payload. Any payload is allowed for a command that the model
// doesn't have: the Device or the mapper may have it.
func (m *DeviceModel) CheckCommand(name string, payload []byte) error {
	c, ok := m.Command(name)
	if !ok {
		return nil
	}
	return c.Check(payload)
}

func (m *DeviceModel) checkEvents(p *causeList) {
	seen := uniqueNames{}
	for i, e := range m.Spec.Events {
		at := fmt.Sprintf("spec.events[%d]", i)
		checkPropertyName(p, at+".name", e.Name)
		seen.check(p, at+".name", e.Name)
		if e.Name == AlarmEvent {
			p.add(at+".name", "%s is the event of the device's alarms: choose another name", clipText(e.Name))
		}
		checkTitle(p, at+".title", e.Title)
		e.Property().checkValues(p, at)
	}
}

func (m *DeviceModel) checkCommands(p *causeList) {
	seen := uniqueNames{}
	for i, c := range m.Spec.Commands {
		at := fmt.Sprintf("spec.commands[%d]", i)
		checkPropertyName(p, at+".name", c.Name)
		seen.check(p, at+".name", c.Name)
		checkTitle(p, at+".title", c.Title)
		c.Property().checkValues(p, at+".input")
	}
}

func checkPropertyName(p *causeList, field, name string) {
	if !topics.ValidProperty(name) {
		p.add(field, "%s: must be %s", clipText(name), topics.PropertyRule())
	}
}

const maxTitle = 128

func checkTitle(p *causeList, field, title string) {
	if utf8.RuneCountInString(title) > maxTitle || strings.ContainsFunc(title, unicode.IsControl) {
		p.add(field, "%s: must be at most %d characters, in one line", clipText(title), maxTitle)
	}
}
