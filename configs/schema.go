// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/edgebus/edgebus/topics/resource"
)

// settingField is one setting: its key, and the field that holds it.
type settingField struct {
	key    string
	value  reflect.Value
	secret bool
	tag    reflect.StructTag // its rules: min (0 or 1), max (65535), oneof, is (see textRules); file: it names a file that the program reads
}

// leavesOf lists the settings of a struct. Their names are in the fields' yaml tags; a struct is a section unless it is a
// TextUnmarshaler.
func leavesOf(v reflect.Value, prefix string) []settingField {
	var all []settingField
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		at := v.Field(i)
		switch {
		case options == "inline":
			all = append(all, leavesOf(at, prefix)...)
		case name == "" || name == "-":
		case at.Kind() == reflect.Struct && !isTextUnmarshaler(at):
			all = append(all, leavesOf(at, prefix+name+".")...)
		default:
			all = append(all, settingField{key: prefix + name, value: at, secret: field.Tag.Get("secret") != "", tag: field.Tag})
		}
	}
	return all
}

func isTextUnmarshaler(v reflect.Value) bool {
	_, ok := v.Addr().Interface().(encoding.TextUnmarshaler)
	return ok
}

// check says what rule of its tag the value breaks.
func (f settingField) check() error {
	if choice := strings.Fields(f.tag.Get("oneof")); len(choice) > 0 && !slices.Contains(choice, f.value.String()) {
		return fmt.Errorf("%q is not one of %s", f.value, strings.Join(choice, ", "))
	}
	if is := f.tag.Get("is"); is != "" {
		return textRules[is](f.value.String())
	}
	if !f.value.CanInt() {
		return nil
	}
	switch least, n := f.tag.Get("min"), f.value.Int(); {
	case least == "1" && n <= 0:
		return errors.New("must be more than 0")
	case least == "0" && n < 0:
		return fmt.Errorf("%d is less than 0, which sets no limit", n)
	case f.tag.Get("max") == "65535" && n > math.MaxUint16:
		return fmt.Errorf("%d is more than the 65535 that MQTT can say", n)
	case f.tag.Get("max") == strconv.Itoa(resource.MaxDiscoveredDevices) && n > resource.MaxDiscoveredDevices:
		return fmt.Errorf("%d is more than the %d devices of a node and Configuration that the hub takes", n, resource.MaxDiscoveredDevices)
	}
	return nil
}

func (f settingField) isList() bool { return f.value.Kind() == reflect.Slice }

// isSecret reports whether the setting, or a field of a list's members, is secret.
func (f settingField) isSecret() bool {
	if !f.isList() || f.value.Type().Elem().Kind() != reflect.Struct {
		return f.secret
	}
	t := f.value.Type().Elem()
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("secret") != "" {
			return true
		}
	}
	return false
}

// example is how a list is written where it is one text: in the environment and as a flag.
func (f settingField) example() string {
	t := f.value.Type().Elem()
	switch t.Kind() {
	case reflect.String:
		return "a,b or [a, b]"
	case reflect.Struct:
		var fields []string
		for i := range t.NumField() {
			name, options, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
			if !strings.Contains(options, "omitempty") {
				fields = append(fields, name+": …")
			}
		}
		return "[{" + strings.Join(fields, ", ") + "}]"
	}
	return "[[a, b], [c]]"
}

// set gives the field the value that text stands for.
func (f settingField) set(text string) error {
	switch at := f.value.Addr().Interface().(type) {
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration, such as 30s or 1h30m", text)
		}
		if d < 0 {
			return fmt.Errorf("%q is less than nothing", text)
		}
		*at = d
		return nil
	case encoding.TextUnmarshaler:
		return at.UnmarshalText([]byte(text))
	}
	return f.setKind(text)
}

func (f settingField) setKind(text string) error {
	switch f.value.Kind() {
	case reflect.String:
		f.value.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		f.value.SetBool(b)
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		f.value.SetInt(int64(n))
	case reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", text)
		}
		f.value.SetFloat(n)
	case reflect.Slice:
		return f.setList(text)
	default:
		return fmt.Errorf("settings of type %s are not supported", f.value.Type())
	}
	return nil
}

// setList reads a list in YAML, in which a fault is named by the list's own lines. A list of texts may be written with commas between them
// instead.
func (f settingField) setList(text string) error {
	if first := strings.TrimSpace(text); first != "" && first[0] != '[' && first[0] != '-' {
		if f.value.Type().Elem().Kind() != reflect.String {
			return fmt.Errorf("%q is not a list in YAML, such as %s", text, f.example())
		}
		fresh := reflect.MakeSlice(f.value.Type(), 0, strings.Count(text, ",")+1)
		for item := range strings.SplitSeq(first, ",") {
			fresh = reflect.Append(fresh, reflect.ValueOf(strings.TrimSpace(item)).Convert(f.value.Type().Elem()))
		}
		f.value.Set(fresh)
		return nil
	}
	decoder := yaml.NewDecoder(strings.NewReader(text))
	decoder.KnownFields(true)
	fresh := reflect.New(f.value.Type())
	if err := decoder.Decode(fresh.Interface()); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("not a list that fits, such as %s: %w", f.example(), err)
	}
	f.value.Set(fresh.Elem())
	return nil
}

// scan reads the settings of a YAML document, each as text. Unknown keys are reported with their lines.
func (l *settingsLoader) scan(text []byte, file string) (map[string]string, error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return nil, nil // nothing but comments
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if decoder.Decode(new(yaml.Node)) == nil {
		return nil, fmt.Errorf("%s: more than one YAML document", file)
	}
	s := fileScanner{settingsLoader: l, file: file, known: map[string]settingField{}, sections: map[string]bool{}, found: map[string]string{}}
	for _, f := range l.leaves {
		s.known[f.key] = f
		for i, r := range f.key {
			if r == '.' {
				s.sections[f.key[:i]] = true
			}
		}
	}
	s.mapping(document.Content[0], "")
	return s.found, nil
}

type fileScanner struct {
	*settingsLoader
	file     string
	known    map[string]settingField
	sections map[string]bool
	found    map[string]string
}

func (s *fileScanner) at(n *yaml.Node) string {
	if s.file == "default" {
		return s.file
	}
	return s.file + ":" + strconv.Itoa(n.Line)
}

func (s *fileScanner) mapping(n *yaml.Node, prefix string) {
	n = resolveAlias(n)
	if isNull(n) {
		return // a section with all its keys commented out
	}
	if n.Kind != yaml.MappingNode {
		key := strings.TrimSuffix(prefix, ".")
		if key == "" {
			key = "the file"
		}
		s.fail(key, s.at(n), "must hold keys, not a value")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		s.entry(n.Content[i], n.Content[i+1], prefix+n.Content[i].Value)
	}
}

func (s *fileScanner) entry(name, value *yaml.Node, key string) {
	if s.sections[key] {
		s.mapping(value, key+".")
		return
	}
	f, ok := s.known[key]
	if !ok {
		s.fail(key, s.at(name), "unknown key%s", s.suggestion(key))
		return
	}
	if _, twice := s.found[key]; twice {
		s.fail(key, s.at(name), "set twice, first at %s", s.lines[key])
		return
	}
	text, err := s.text(f, resolveAlias(value), key)
	if err != nil {
		s.fail(key, s.at(value), "%v", err)
		return
	}
	if text != nil {
		s.found[key], s.lines[key] = *text, s.at(name)
	}
}

// text is the value as written; nil if there is none.
func (s *fileScanner) text(f settingField, n *yaml.Node, key string) (*string, error) {
	switch {
	case isNull(n):
		return nil, nil
	case f.isList():
		if n.Kind != yaml.SequenceNode {
			return nil, errors.New("must be a list")
		}
		s.members(f.value.Type().Elem(), n, key)
		out, err := yaml.Marshal(n)
		text := string(out)
		return &text, err
	case n.Kind != yaml.ScalarNode:
		return nil, errors.New("must be a single value")
	default:
		return &n.Value, nil
	}
}

// members looks for unknown keys in a list of structs.
func (s *fileScanner) members(t reflect.Type, list *yaml.Node, key string) {
	if t.Kind() != reflect.Struct {
		return
	}
	inner := *s
	inner.known, inner.sections = map[string]settingField{}, nil
	for i, n := range list.Content {
		prefix := fmt.Sprintf("%s[%d].", key, i)
		inner.found = map[string]string{}
		for _, f := range leavesOf(reflect.New(t).Elem(), prefix) {
			inner.known[f.key] = f
		}
		inner.mapping(n, prefix)
	}
}

// suggestion names the known key nearest to one that isn't known.
func (s *fileScanner) suggestion(key string) string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(s.known)), maps.Keys(s.sections))
	slices.Sort(names)
	best := resource.NearestNames(key, names)
	for _, name := range names { // the right name in the wrong place
		if best == "" && strings.TrimPrefix(filepath.Ext("."+name), ".") == strings.TrimPrefix(filepath.Ext("."+key), ".") {
			best = name
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

func resolveAlias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
