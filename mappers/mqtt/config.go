// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
)

// deviceConfig is a Device's configuration, parsed.
type deviceConfig struct {
	fields       map[string]*mappedProperty
	order        []*mappedProperty
	events       []*mappedProperty
	commands     []*mappedProperty
	availability availability
	get          string // topic; empty: the device can't be asked
	getPayload   string
	getEvery     time.Duration   // 0: only when that is needed
	sparkplug    sparkplugSource // zero: it speaks no Sparkplug
}

// valueSource is where a value is read from: a topic, and a path in the JSON of its payload. Without a path it is the payload.
type valueSource struct {
	topic string
	path  jsonpath.Path
}

// mappedProperty is one property, event or command, as its visitor describes it.
type mappedProperty struct {
	at      string // path of the settings, for errors
	name    string
	typ     mappers.Type
	words   bool // the device's texts are translated
	same    func(a, b string) bool
	within  time.Duration // how long the device may take to have a value; 0: Options.Timeout
	metric  string        // of Sparkplug; empty: none
	state   valueSource   // no topic: the device doesn't say what it has
	command string        // topic; empty: can't be written
	payload string        // template; empty: by the path, or the value itself
	retain  bool
	qos     byte
}

// configSettings are the keys of a configuration that have not been read yet.
type configSettings struct {
	at     string // path of the fields, for errors
	config map[string]string
	params *deviceParams
}

// take returns a setting, with parameters replaced in it, and forgets it.
func (s configSettings) take(key string) (string, error) {
	text := s.config[key]
	delete(s.config, key)
	return s.params.expand(s.at+key, text)
}

func (s configSettings) topic(key string) (string, error) {
	text, err := s.take(key)
	if err != nil {
		return "", err
	}
	return text, s.checkTopic(key, text)
}

// checkTopic refuses a topic that no device can have.
func (s configSettings) checkTopic(key, text string) error {
	switch {
	case strings.ContainsAny(text, "+#\x00"):
		return mappers.BadConfig(s.at+key, "%q: a topic without wildcards is needed", text)
	case strings.HasPrefix(text, "$"), strings.HasPrefix(text+"/", "v1/nodes/"), strings.HasPrefix(text+"/", "v1/refused/"):
		return mappers.BadConfig(s.at+key, "%q: topics below $, v1/nodes and v1/refused belong to the broker", text)
	}
	return nil
}

func (s configSettings) source(topic, pathKey string) (from valueSource, err error) {
	if from.topic, err = s.topic(topic); err != nil {
		return from, err
	}
	text, err := s.take(pathKey)
	if err != nil {
		return from, err
	}
	if from.path, err = jsonpath.Parse(text); err != nil {
		return from, mappers.BadConfig(s.at+pathKey, "%q: %v", text, err)
	}
	return from, nil
}

// interval reads a duration of a second or more; 0: there is none.
func (s configSettings) interval(key string) (time.Duration, error) {
	text, err := s.take(key)
	if err != nil || text == "" {
		return 0, err
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		return 0, mappers.BadConfig(s.at+key, "%q is no duration of a second or more, such as 30s", text)
	}
	return d, nil
}

// deviceParams are the keys of a Device's configuration that visitors may refer to as {key}.
type deviceParams struct {
	values map[string]string
	used   map[string]bool
}

var (
	placeholderPattern = regexp.MustCompile(`\{[A-Za-z][A-Za-z0-9_]*\}`)
	// ofValue are the placeholders that a write replaces.
	ofValue = []string{"{value}", "{json}"}
)

// expand replaces {key} by the Device's setting.
func (p *deviceParams) expand(field, text string) (string, error) {
	var missing string
	text = placeholderPattern.ReplaceAllStringFunc(text, func(found string) string {
		key := strings.Trim(found, "{}")
		value, ok := p.values[key]
		switch {
		case slices.Contains(ofValue, found):
			return found
		case !ok && missing == "":
			missing = key
		}
		p.used[key] = true
		return value
	})
	if missing != "" {
		return "", mappers.BadConfig(devicePath+missing, "is required: {%s} is used in %s", missing, field)
	}
	return text, nil
}

const devicePath = "spec.protocol.config."

// reservedSettings are the settings of a Device that are not parameters of its own choice.
var reservedSettings = func() (names []string) {
	for _, s := range protocolSettings.Device {
		if !s.Address {
			names = append(names, s.Name)
		}
	}
	return names
}()

func parseDevice(d mappers.Device) (c deviceConfig, err error) {
	p := &deviceParams{values: map[string]string{}, used: map[string]bool{}}
	own := configSettings{at: devicePath, config: map[string]string{}, params: p}
	for key, value := range d.Config {
		if slices.Contains(reservedSettings, key) {
			own.config[key] = value
		} else {
			p.values[key] = value
		}
	}
	if c.availability, err = own.availability(); err != nil {
		return c, err
	}
	if c.get, err = own.topic("get"); err != nil {
		return c, err
	}
	if c.getPayload, err = own.take("getPayload"); err != nil {
		return c, err
	}
	if c.getEvery, err = own.interval("getEvery"); err != nil {
		return c, err
	}
	if c.getEvery > 0 && c.get == "" {
		return c, mappers.BadConfig(devicePath+"get", "is required with getEvery: the topic on which the device is asked")
	}
	if c.sparkplug, err = own.sparkplug(); err != nil {
		return c, err
	}
	c.fields = map[string]*mappedProperty{}
	for _, property := range d.Properties {
		if !property.Visited && len(property.Config) == 0 {
			continue // the model doesn't say how to reach it: its reads and writes are refused
		}
		f, err := parseField(property, p, c.sparkplug)
		if err != nil {
			return c, err
		}
		c.fields[f.name] = f
		c.order = append(c.order, f)
	}
	for _, event := range d.Events {
		f, err := parseVisitor(event, p)
		if err == nil {
			err = f.checkEvent()
		}
		if err != nil {
			return c, err
		}
		c.events = append(c.events, f)
	}
	for _, command := range d.Commands {
		f, err := parseVisitor(command, p)
		if err == nil {
			err = f.checkCommand()
		}
		if err != nil {
			return c, err
		}
		c.commands = append(c.commands, f)
	}
	for _, key := range slices.Sorted(maps.Keys(p.values)) {
		if !p.used[key] {
			return c, mappers.BadConfig(devicePath+key, "is no setting of mqtt, and nothing refers to {%s}%s", key, yamlHint(key))
		}
	}
	return c, nil
}

// yamlHint is for keys that somebody has written as on and off.
func yamlHint(key string) string {
	if key == "true" || key == "false" {
		return ": YAML reads on and off as true and false, so choose other names"
	}
	return ""
}

func parseField(p mappers.Property, params *deviceParams, source sparkplugSource) (*mappedProperty, error) {
	f, err := parseVisitor(p, params)
	if err != nil {
		return nil, err
	}
	return f, f.check(f.at, p.Writable, source)
}

// parseVisitor reads the settings of a visitor, of a property, event or command.
func parseVisitor(p mappers.Property, params *deviceParams) (*mappedProperty, error) {
	s := configSettings{at: "visitors[" + p.Name + "].config.", config: maps.Clone(p.Config), params: params}
	f := &mappedProperty{at: s.at, name: p.Name, typ: p.Type, words: len(p.Words) > 0, same: p.Same, within: p.ConfirmWithin}
	var err error
	if f.metric, err = s.take("metric"); err != nil {
		return nil, err
	}
	if f.payload, err = s.take("payload"); err != nil {
		return nil, err
	}
	if f.state, err = s.source("state", "path"); err != nil {
		return nil, err
	}
	if f.command, err = s.topic("command"); err != nil {
		return nil, err
	}
	if text, _ := s.take("retain"); text != "" {
		if f.retain, err = strconv.ParseBool(text); err != nil {
			return nil, mappers.BadConfig(s.at+"retain", "%q is neither true nor false", text)
		}
	}
	f.qos = 1
	if text, _ := s.take("qos"); text != "" {
		n, err := strconv.ParseUint(text, 10, 8)
		if err != nil || n > 2 {
			return nil, mappers.BadConfig(s.at+"qos", "%q is none of 0, 1, 2", text)
		}
		f.qos = byte(n)
	}
	if left := slices.Sorted(maps.Keys(s.config)); len(left) > 0 {
		hint := ""
		if slices.Contains([]string{"on", "off", "true", "false"}, left[0]) { // YAML reads on and off as truth values
			hint = `: what a device says for a value is in the visitor's words, such as words: [{value: "true", write: "ON"}, {value: "false", write: "OFF"}]`
		}
		return nil, mappers.BadConfig(s.at+left[0], "is no setting of mqtt%s", hint)
	}
	return f, nil
}

func (f *mappedProperty) checkEvent() error {
	switch {
	case f.state.topic == "":
		return mappers.BadConfig(f.at+"state", "is required: the topic on which the device publishes the event %s", f.name)
	case f.command != "" || f.payload != "" || f.metric != "":
		return mappers.BadConfig(f.at+"state", "an event has state and path, and no other settings")
	}
	return nil
}

func (f *mappedProperty) checkCommand() error {
	switch {
	case f.command == "":
		return mappers.BadConfig(f.at+"command", "is required: the topic to which the device listens for the command %s", f.name)
	case f.state.topic != "" || f.metric != "":
		return mappers.BadConfig(f.at+"command", "a command has command, payload, path, qos and retain, and no other settings")
	case f.typ == "" && slices.ContainsFunc(ofValue, func(v string) bool { return strings.Contains(f.payload, v) }):
		return mappers.BadConfig(f.at+"payload", "has a placeholder for an input, and the command %s has none in the model", f.name)
	}
	return nil
}

func (f *mappedProperty) check(at string, writable bool, source sparkplugSource) error {
	switch {
	case f.metric != "" && source == (sparkplugSource{}):
		return mappers.BadConfig(devicePath+"sparkplug", "is required, for %s is a metric: group/edge node, or group/edge node/device", f.name)
	case f.metric != "" && (f.state.topic != "" || f.command != "" || f.payload != ""):
		return mappers.BadConfig(at+"metric", "can't be together with state, command and payload")
	case f.metric != "":
		return nil
	case f.state.topic == "" && f.command == "":
		return mappers.BadConfig(at+"state", "is required: the topic on which the device publishes %s, or command, to which it listens", f.name)
	case f.command == "" && writable:
		return mappers.BadConfig(at+"command", "is required, for %s is ReadWrite: the topic to which the device listens", f.name)
	case f.payload != "" && !slices.ContainsFunc(ofValue, func(v string) bool { return strings.Contains(f.payload, v) }):
		return mappers.BadConfig(at+"payload", "contains neither {value} nor {json}: each write would be the same")
	case f.payload == "" && f.command != "" && f.state.path.Indexed():
		return mappers.BadConfig(at+"payload", "is required, for path has an index")
	}
	return nil
}
