// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// FoundDevice is a device as a mapper's scan or browse found it: what it takes to have it in the tree. WriteManifests writes it.
type FoundDevice struct {
	Name, Title string
	Model       string // the name of its DeviceModel, which others may have as well; default: Name
	Node        string // default: node1
	Protocol    string
	Config      map[string]string // spec.protocol.config
	Properties  []FoundProperty
	Events      []FoundEvent
	Commands    []FoundCommand
}

// FoundProperty is a property that was found, with its visitor's config.
type FoundProperty struct {
	Name, Title, Type, Unit string
	Writable                bool
	Minimum, Maximum        *float64
	Enum                    []string
	Words                   []FoundWord
	ConfirmWithin           int64 // milliseconds
	Config                  map[string]string
}

// FoundEvent is an event that was found, with its visitor's config.
type FoundEvent struct {
	Name   string
	Enum   []string
	Config map[string]string
}

// FoundCommand is a command that was found, with its visitor's config. Without an input type it is called with nothing.
type FoundCommand struct {
	Name             string
	Type             string
	Minimum, Maximum *float64
	Enum             []string
	Config           map[string]string
}

// FoundWord is a value of the enumeration, and what the device says for it.
type FoundWord struct {
	Value string   `yaml:"value"`
	Read  []string `yaml:"read,flow"`
	Write string   `yaml:"write,omitempty"`
}

// The manifests, with their fields in the order in which people write them.
type (
	manifest struct {
		APIVersion string       `yaml:"apiVersion"`
		Kind       string       `yaml:"kind"`
		Metadata   manifestName `yaml:"metadata"`
		Spec       any          `yaml:"spec"`
	}
	manifestName struct {
		Name string `yaml:"name"`
	}
	modelSpec struct {
		Properties []modelProperty `yaml:"properties"`
		Events     []modelEvent    `yaml:"events,omitempty"`
		Commands   []modelCommand  `yaml:"commands,omitempty"`
		Visitors   []modelVisitors `yaml:"propertyVisitors"`
	}
	modelEvent struct {
		Name  string   `yaml:"name"`
		Title string   `yaml:"title,omitempty"`
		Enum  []string `yaml:"enum,flow,omitempty"`
	}
	modelCommand struct {
		Name  string      `yaml:"name"`
		Title string      `yaml:"title,omitempty"`
		Input *modelInput `yaml:"input,omitempty"`
	}
	modelInput struct {
		Type    string   `yaml:"type"`
		Minimum *float64 `yaml:"minimum,omitempty"`
		Maximum *float64 `yaml:"maximum,omitempty"`
		Enum    []string `yaml:"enum,flow,omitempty"`
	}
	modelProperty struct {
		Name       string   `yaml:"name"`
		Title      string   `yaml:"title,omitempty"`
		Type       string   `yaml:"type"`
		Unit       string   `yaml:"unit,omitempty"`
		AccessMode string   `yaml:"accessMode"`
		Minimum    *float64 `yaml:"minimum,omitempty"`
		Maximum    *float64 `yaml:"maximum,omitempty"`
		Enum       []string `yaml:"enum,flow,omitempty"`
	}
	modelVisitors struct {
		Protocol string         `yaml:"protocol"`
		Visitors []modelVisitor `yaml:"visitors"`
	}
	modelVisitor struct {
		PropertyName  string            `yaml:"propertyName,omitempty"`
		EventName     string            `yaml:"eventName,omitempty"`
		CommandName   string            `yaml:"commandName,omitempty"`
		ConfirmWithin int64             `yaml:"confirmWithin,omitempty"`
		Words         []FoundWord       `yaml:"words,omitempty"`
		Config        map[string]string `yaml:"config,flow"`
	}
	deviceSpec struct {
		Model    manifestName   `yaml:"deviceModelRef"`
		Node     string         `yaml:"nodeName"`
		Protocol deviceProtocol `yaml:"protocol"`
	}
	deviceProtocol struct {
		Type   string            `yaml:"type"`
		Config map[string]string `yaml:"config,flow"`
	}
)

// WriteManifests writes Devices and their DeviceModels as YAML, as edgebus apply takes them: a model before the first Device that has it. Names
// that can't be used are made fit.
func WriteManifests(w io.Writer, list ...FoundDevice) error {
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	written := map[string]bool{}
	for _, f := range list {
		name := FitName(f.Name, "device")
		model := name
		if f.Model != "" {
			model = FitName(f.Model, "model")
		}
		node := f.Node
		if node == "" {
			node = "node1"
		}
		documents := []manifest{
			{"edgebus.io/v1alpha1", "DeviceModel", manifestName{model}, f.model()},
			{"edgebus.io/v1alpha1", "Device", manifestName{name}, deviceSpec{manifestName{model}, node, deviceProtocol{f.Protocol, f.Config}}},
		}
		if written[model] {
			documents = documents[1:]
		}
		written[model] = true
		for _, m := range documents {
			if err := e.Encode(m); err != nil {
				return err
			}
		}
	}
	return e.Close()
}

// model is the spec of the DeviceModel. Properties, events and commands have names of their own.
func (f FoundDevice) model() modelSpec {
	model := modelSpec{Properties: []modelProperty{}, Visitors: []modelVisitors{{Protocol: f.Protocol, Visitors: []modelVisitor{}}}}
	visitors := &model.Visitors[0].Visitors
	fit := func(taken map[string]int, name, fallback, title string) (id, shown string) {
		if id = name; !fitPattern.MatchString(id) {
			id = FitName(name, fallback)
		}
		for base := id; taken[id] > 0; {
			taken[base]++
			id = fmt.Sprintf("%s-%d", base, taken[base])
		}
		taken[id] = 1
		if title == "" && name != id {
			title = name
		}
		return id, fitTitle(title)
	}
	taken := map[string]int{}
	for _, p := range f.Properties {
		id, title := fit(taken, p.Name, "property", p.Title)
		mode := "ReadOnly"
		if p.Writable {
			mode = "ReadWrite"
		}
		model.Properties = append(model.Properties, modelProperty{id, title, p.Type, p.Unit, mode, p.Minimum, p.Maximum, p.Enum})
		*visitors = append(*visitors, modelVisitor{PropertyName: id, ConfirmWithin: p.ConfirmWithin, Words: p.Words, Config: p.Config})
	}
	taken = map[string]int{}
	for _, event := range f.Events {
		id, title := fit(taken, event.Name, "event", "")
		model.Events = append(model.Events, modelEvent{id, title, event.Enum})
		*visitors = append(*visitors, modelVisitor{EventName: id, Config: event.Config})
	}
	taken = map[string]int{}
	for _, c := range f.Commands {
		id, title := fit(taken, c.Name, "command", "")
		command := modelCommand{Name: id, Title: title}
		if c.Type != "" {
			command.Input = &modelInput{c.Type, c.Minimum, c.Maximum, c.Enum}
		}
		model.Commands = append(model.Commands, command)
		*visitors = append(*visitors, modelVisitor{CommandName: id, Config: c.Config})
	}
	return model
}

// fitTitle makes a title of what a device calls something: one line of at most 128 characters.
func fitTitle(s string) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, ""), func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if runes := []rune(s); len(runes) > 128 {
		return string(runes[:127]) + "…"
	}
	return s
}

// fitPattern is of names of properties that are kept as they are.
var fitPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$`)

// FitName makes a name of what a device calls something: lower case letters, digits and hyphens, at most 63 of them. fallback is for what
// has neither letters nor digits.
func FitName(s, fallback string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case strings.ContainsRune("äöüßµμ", r):
			b.WriteString(map[rune]string{'ä': "ae", 'ö': "oe", 'ü': "ue", 'ß': "ss", 'µ': "u", 'μ': "u"}[r])
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	name := b.String()
	name = strings.Trim(name[:min(len(name), 63)], "-")
	if name == "" {
		return fallback
	}
	return name
}
