package mqtt

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/mappers"
)

// deviceConfig is a Device's configuration, parsed.
type deviceConfig struct {
	fields       map[string]*mappedProperty
	order        []*mappedProperty
	availability valueSource
	available    string // the text that says that the device is there
	get          string // topic; empty: the device can't be asked
	getPayload   string
}

// valueSource is where a value is read from: a topic, and a path in the JSON of its payload. Without a path it is the payload.
type valueSource struct {
	topic string
	path  jsonPath
}

// mappedProperty is one property, as its visitor describes it.
type mappedProperty struct {
	name    string
	typ     mappers.Type
	same    func(a, b string) bool
	state   valueSource // no topic: the device doesn't say what it has
	command string      // topic; empty: can't be written
	payload string      // template; empty: by the path, or the value itself
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
	switch {
	case err != nil || text == "":
		return "", err
	case strings.ContainsAny(text, "+#\x00"):
		return "", mappers.BadConfig(s.at+key, "%q: a topic without wildcards is needed", text)
	case strings.HasPrefix(text, "$"), strings.HasPrefix(text+"/", "v1/nodes/"), strings.HasPrefix(text+"/", "v1/refused/"):
		return "", mappers.BadConfig(s.at+key, "%q: topics below $, v1/nodes and v1/refused belong to the broker", text)
	}
	return text, nil
}

func (s configSettings) source(topic, pathKey string) (from valueSource, err error) {
	if from.topic, err = s.topic(topic); err != nil {
		return from, err
	}
	text, err := s.take(pathKey)
	if err != nil {
		return from, err
	}
	if from.path, err = parsePath(text); err != nil {
		return from, mappers.BadConfig(s.at+pathKey, "%q: %v", text, err)
	}
	return from, nil
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

// The settings of a Device that are not parameters of its own choice.
var reservedSettings = []string{"availability", "availabilityPath", "available", "get", "getPayload"}

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
	if c.availability, err = own.source("availability", "availabilityPath"); err != nil {
		return c, err
	}
	if c.available, err = own.take("available"); err != nil {
		return c, err
	}
	if c.get, err = own.topic("get"); err != nil {
		return c, err
	}
	if c.getPayload, err = own.take("getPayload"); err != nil {
		return c, err
	}
	c.available = cmp.Or(c.available, "online")
	c.fields = map[string]*mappedProperty{}
	for _, property := range d.Properties {
		if !property.Visited && len(property.Config) == 0 {
			continue // the model doesn't say how to reach it: its reads and writes are refused
		}
		f, err := parseField(property, p)
		if err != nil {
			return c, err
		}
		c.fields[f.name] = f
		c.order = append(c.order, f)
	}
	for _, key := range slices.Sorted(maps.Keys(p.values)) {
		if !p.used[key] {
			return c, mappers.BadConfig(devicePath+key, "is no setting of mqtt, and nothing refers to {%s}", key)
		}
	}
	return c, nil
}

func parseField(p mappers.Property, params *deviceParams) (*mappedProperty, error) {
	s := configSettings{at: "visitors[" + p.Name + "].config.", config: maps.Clone(p.Config), params: params}
	f := &mappedProperty{name: p.Name, typ: p.Type, same: p.Same}
	var err error
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
	for _, key := range slices.Sorted(maps.Keys(s.config)) {
		return nil, mappers.BadConfig(s.at+key, "is no setting of mqtt")
	}
	return f, f.check(s.at, p.Writable)
}

func (f *mappedProperty) check(at string, writable bool) error {
	switch {
	case f.state.topic == "" && f.command == "":
		return mappers.BadConfig(at+"state", "is required: the topic on which the device publishes %s, or command, to which it listens", f.name)
	case f.command == "" && writable:
		return mappers.BadConfig(at+"command", "is required, for %s is ReadWrite: the topic to which the device listens", f.name)
	case f.payload != "" && !slices.ContainsFunc(ofValue, func(v string) bool { return strings.Contains(f.payload, v) }):
		return mappers.BadConfig(at+"payload", "contains neither {value} nor {json}: each write would be the same")
	case f.payload == "" && f.command != "" && f.state.path.indexed():
		return mappers.BadConfig(at+"payload", "is required, for path has an index")
	}
	return nil
}

// encode makes the payload of a command.
func (f *mappedProperty) encode(value string) ([]byte, error) {
	literal := value
	switch {
	case f.typ == mappers.Bytes && f.payload == "" && f.state.path == nil:
		return base64.StdEncoding.DecodeString(value)
	case f.typ == mappers.String, f.typ == mappers.Bytes, f.typ == "":
		literal = quoteJSON(value)
	}
	switch {
	case f.payload != "":
		return []byte(strings.NewReplacer("{value}", value, "{json}", literal).Replace(f.payload)), nil
	case f.state.path != nil:
		return []byte(f.state.path.wrap(literal)), nil
	}
	return []byte(value), nil
}

func quoteJSON(text string) string {
	literal, _ := json.Marshal(text) // a text can be written
	return string(literal)
}

// decode makes the property's value of a message. ok is false for one that says nothing about it: the path leads nowhere.
func (f *mappedProperty) decode(m *jsonMessage) (value string, ok bool, err error) {
	value, quoted, ok, err := m.find(f.state.path)
	if !ok || err != nil {
		return "", false, err
	}
	switch {
	case f.typ == mappers.Boolean:
		return f.boolean(value)
	case f.typ == mappers.Bytes && f.state.path == nil:
		return base64.StdEncoding.EncodeToString(m.payload), true, nil
	case f.typ == mappers.Int: // 127.0 is a whole number
		if x, err := strconv.ParseFloat(value, 64); err == nil && x == float64(int64(x)) && strings.ContainsAny(value, ".eE") {
			value = strconv.FormatInt(int64(x), 10)
		}
	case (f.typ == mappers.Object || f.typ == mappers.Array) && quoted:
		value = quoteJSON(value)
	}
	return value, true, nil
}

func (f *mappedProperty) boolean(value string) (string, bool, error) {
	switch strings.ToLower(value) {
	case "true", "1", "on":
		return "true", true, nil
	case "false", "0", "off":
		return "false", true, nil
	}
	return "", false, mappers.Refuse(mappers.Invalid, "%q on %s is neither on nor off", clipText(value), f.state.topic)
}

// clipText shortens a text for an error.
func clipText(text string) string {
	if len(text) > 80 {
		return strings.ToValidUTF8(text[:80], "") + "…"
	}
	return text
}
