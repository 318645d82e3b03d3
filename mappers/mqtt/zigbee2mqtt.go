// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/mappers/cmd"
	"github.com/edgebus/edgebus/mappers/jsonpath"
)

// zigbeeDevice is one in the list that zigbee2mqtt retains at {topic}/bridge/devices.
type zigbeeDevice struct {
	Name       string `json:"friendly_name"`
	Type       string `json:"type"`
	Power      string `json:"power_source"`
	Definition *struct {
		Model   string           `json:"model"`
		Vendor  string           `json:"vendor"`
		Exposes []exposedFeature `json:"exposes"`
	} `json:"definition"`
}

// exposedFeature is what a device has, as zigbee2mqtt describes it: a value, or several of a kind such as light.
type exposedFeature struct {
	Type     string            `json:"type"`
	Name     string            `json:"name"`
	Label    string            `json:"label"`
	Property string            `json:"property"`
	Access   int               `json:"access"`
	Unit     string            `json:"unit"`
	On       json.RawMessage   `json:"value_on"`
	Off      json.RawMessage   `json:"value_off"`
	Minimum  *float64          `json:"value_min"`
	Maximum  *float64          `json:"value_max"`
	Values   []json.RawMessage `json:"values"`
	Features []exposedFeature  `json:"features"`
}

// What can be done with a value.
const (
	accessState = 1 << iota // it is published
	accessSet               // it can be set
	accessGet               // it can be asked for
)

// sleepyConfirm is how long a device that sleeps may take until it has a value, in milliseconds.
const sleepyConfirm = 10 * 60 * 1000

// zigbeeModel makes what a mapper needs of a device: its Device, and its DeviceModel, of what it exposes.
func zigbeeModel(topic string, d zigbeeDevice) cmd.FoundDevice {
	f := cmd.FoundDevice{
		Name: d.Name, Protocol: "mqtt", Config: map[string]string{
			"topic": topic + "/" + d.Name, "availabilityMode": "all",
			"availability": `[{"topic":` + jsonpath.QuoteText(topic+"/bridge/state") + `,"path":"state"},{"topic":"{topic}/availability","path":"state"}]`,
		},
	}
	if d.Definition == nil {
		return f
	}
	f.Model = strings.TrimSpace(d.Definition.Vendor + " " + d.Definition.Model)
	sleeps := d.Type == "EndDevice" && !strings.HasPrefix(d.Power, "Mains") && !strings.HasPrefix(d.Power, "DC")
	z := zigbeeExposes{found: &f, seen: map[string]bool{}, sleeps: sleeps}
	for _, e := range d.Definition.Exposes {
		z.add(e, e.Type)
	}
	if z.gettable != "" && !sleeps { // who sleeps doesn't answer
		f.Config["get"], f.Config["getPayload"] = "{topic}/get", "{"+jsonpath.QuoteText(z.gettable)+`:""}`
	}
	return f
}

// zigbeeExposes collects what a device exposes.
type zigbeeExposes struct {
	found    *cmd.FoundDevice
	seen     map[string]bool // properties that are there
	gettable string          // a property that can be asked for; empty: none can
	sleeps   bool
}

// add takes what is exposed, which is a part of a kind such as cover.
func (z *zigbeeExposes) add(e exposedFeature, kind string) {
	if len(e.Features) > 0 && e.Type != "composite" {
		for _, feature := range e.Features {
			z.add(feature, e.Type)
		}
		return
	}
	access := e.access()
	if e.Property == "" || access == 0 || z.seen[e.Property] {
		return
	}
	z.seen[e.Property] = true
	path := "['" + e.Property + "']"
	if !strings.ContainsAny(e.Property, ".[]' ") {
		path = e.Property
	} else if strings.Contains(e.Property, "'") {
		path = `["` + e.Property + `"]`
	}
	if e.Property == "action" && access == accessState {
		z.found.Events = append(z.found.Events, cmd.FoundEvent{Name: e.Property, Enum: e.texts(), Config: map[string]string{"state": "{topic}", "path": path}})
		return
	}
	set := map[string]string{"command": "{topic}/set", "payload": "{" + jsonpath.QuoteText(e.Property) + ":{json}}"}
	p := cmd.FoundProperty{Name: e.Property, Unit: e.Unit, Writable: access&accessSet != 0, Config: map[string]string{"state": "{topic}", "path": path}}
	if !strings.EqualFold(e.Label, e.Property) {
		p.Title = e.Label
	}
	p.Type, p.Words = e.valueType()
	if p.Writable {
		p.Minimum, p.Maximum = e.Minimum, e.Maximum
		p.Config["command"] = set["command"]
		if p.Config["payload"] = set["payload"]; path == e.Property {
			delete(p.Config, "payload") // that is what is sent anyway
		}
		if z.sleeps {
			p.ConfirmWithin = sleepyConfirm
		}
	}
	if e.Type == "enum" {
		p.Enum = e.texts()
		if kind == "cover" && e.Property == "state" || kind == "cover" && strings.HasPrefix(e.Property, "state_") {
			p.Enum = z.coverStates(e, set)
		}
	}
	if access&accessState == 0 { // it has no value: it is told what to do
		if p.Type == "boolean" && len(p.Words) > 0 {
			p.Type, p.Enum = "string", []string{p.Words[0].Write, p.Words[1].Write}
		}
		z.found.Commands = append(z.found.Commands, cmd.FoundCommand{Name: e.Property, Type: p.Type, Minimum: p.Minimum, Maximum: p.Maximum, Enum: p.Enum, Config: set})
		return
	}
	if access&accessGet != 0 {
		z.gettable = cmp.Or(z.gettable, e.Property)
	}
	z.found.Properties = append(z.found.Properties, p)
}

// coverStates are the words for states of a cover. STOP is none: it is a command.
func (z *zigbeeExposes) coverStates(e exposedFeature, set map[string]string) (states []string) {
	for _, text := range e.texts() {
		if text != "STOP" {
			states = append(states, text)
			continue
		}
		stop := map[string]string{"command": set["command"], "payload": "{" + jsonpath.QuoteText(e.Property) + `:"STOP"}`}
		z.found.Commands = append(z.found.Commands, cmd.FoundCommand{Name: strings.Replace(e.Property, "state", "stop", 1), Config: stop})
	}
	return states
}

// access is what can be done with it: of a composite without an access of its own, what can be done with its parts.
func (e exposedFeature) access() int {
	access := e.Access
	if e.Type == "composite" && access == 0 {
		for _, feature := range e.Features {
			access |= feature.access()
		}
	}
	return access
}

// valueType is the type of the model's property. A truth value that is none in JSON has words.
func (e exposedFeature) valueType() (string, []cmd.FoundWord) {
	switch e.Type {
	case "binary":
		on, off := jsonText(e.On), jsonText(e.Off)
		if on == "" || off == "" || on == off {
			return "string", nil
		}
		if isTruth := on + off; isTruth == "truefalse" || isTruth == "falsetrue" { // contact says false for on, an open door, and true when it is closed
			return "boolean", nil
		}
		return "boolean", []cmd.FoundWord{{Value: "true", Read: []string{on}, Write: on}, {Value: "false", Read: []string{off}, Write: off}}
	case "numeric":
		return "double", nil
	case "composite":
		return "object", nil
	case "list":
		return "array", nil
	}
	return "string", nil
}

// texts are the values of an enumeration.
func (e exposedFeature) texts() (list []string) {
	for _, v := range e.Values {
		if text := jsonText(v); text != "" && !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	return list
}

// jsonText is a text, a number or a truth value in JSON as text.
func jsonText(v json.RawMessage) string {
	var text string
	if json.Unmarshal(v, &text) == nil {
		return text
	}
	return string(v)
}

// zigbeeModels reads the list of zigbee2mqtt. Devices of one kind have one model; names are of those that are wanted, all if there are none.
func zigbeeModels(topic string, payload []byte, node string, names ...string) (list []cmd.FoundDevice, err error) {
	var devices []zigbeeDevice
	if err := json.Unmarshal(payload, &devices); err != nil {
		return nil, fmt.Errorf("%s/bridge/devices is not zigbee2mqtt's list: %w", topic, err)
	}
	models := map[string]string{} // what they expose
	for _, d := range devices {
		if d.Type == "Coordinator" || d.Definition == nil || len(names) > 0 && !slices.Contains(names, d.Name) {
			continue
		}
		f := zigbeeModel(topic, d)
		f.Node = node
		content, _ := json.Marshal([]any{f.Properties, f.Events, f.Commands}) // texts and numbers
		model := cmd.FitName(f.Model, "model")
		if before, ok := models[model]; ok && before != string(content) { // another firmware of it
			f.Model = f.Model + " " + f.Name
			model = cmd.FitName(f.Model, "model")
		}
		models[model] = string(content)
		list = append(list, f)
	}
	return list, nil
}
