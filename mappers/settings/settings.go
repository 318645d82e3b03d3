// SPDX-License-Identifier: Apache-2.0

// Package settings reads the config of Devices and visitors, as drivers do that have no more to say about it than types and ranges: each
// error names the field and the rule.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
)

// DevicePath is where a Device's config is.
const DevicePath = "spec.protocol.config."

// Reader has a configuration's values. Keys are found whatever their case. A key that is not in the driver's table is an error: see Rest.
type Reader struct {
	path, protocol string
	values         map[string]string // by key in lower case
}

// OfDevice reads spec.protocol.config of a Device.
func OfDevice(protocol string, d mappers.Device) Reader {
	return newReader(DevicePath, protocol, d.Config)
}

// OfVisitor reads the config of what the model has a visitor for.
func OfVisitor(protocol string, p mappers.Property) Reader {
	return newReader("visitor "+p.Name+": config.", protocol, p.Config)
}

func newReader(path, protocol string, config map[string]string) Reader {
	s := Reader{path: path, protocol: protocol, values: map[string]string{}}
	for k, v := range config {
		s.values[strings.ToLower(k)] = strings.TrimSpace(v)
	}
	return s
}

// Get returns a key's value; empty: it is not set.
func (s Reader) Get(key string) string { return s.values[strings.ToLower(key)] }

// Bad makes the error of a key.
func (s Reader) Bad(key, format string, args ...any) error {
	return mappers.BadConfig(s.path+key, format, args...)
}

// Integer is a number from low to high.
func (s Reader) Integer(key string, def, low, high int64) (int64, error) {
	text := s.Get(key)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, s.Bad(key, "%q is no number from %d to %d", text, low, high)
	}
	return n, nil
}

// Duration is a time from low to high.
func (s Reader) Duration(key string, def, low, high time.Duration) (time.Duration, error) {
	text := s.Get(key)
	if text == "" {
		return def, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < low || d > high {
		return 0, s.Bad(key, "%q is no time from %s to %s, such as %s", text, low, high, cmp.Or(def, low))
	}
	return d, nil
}

// Boolean is true or false.
func (s Reader) Boolean(key string, def bool) (bool, error) {
	text := s.Get(key)
	if text == "" {
		return def, nil
	}
	b, err := strconv.ParseBool(strings.ToLower(text))
	if err != nil {
		return false, s.Bad(key, "%q is neither true nor false", text)
	}
	return b, nil
}

// Choice is one of some words, whatever its case.
func (s Reader) Choice(key, def string, words ...string) (string, error) {
	text := cmp.Or(s.Get(key), def)
	for _, w := range words {
		if strings.EqualFold(w, text) {
			return w, nil
		}
	}
	return "", s.Bad(key, "%q is none of %s", text, strings.Join(words, ", "))
}

// Rest reports a key that is not in the table of the protocol's settings, which forms and help show.
func (s Reader) Rest(table []mappers.ProtocolSetting) error {
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if !slices.ContainsFunc(table, func(t mappers.ProtocolSetting) bool { return strings.EqualFold(t.Name, key) }) {
			return s.Bad(key, "is no setting of %s", s.protocol)
		}
	}
	return nil
}

// FileName is the name of a file in one of the mapper's own directories, which a Device may name: no path.
func (s Reader) FileName(key string) (string, error) {
	name := s.Get(key)
	if strings.ContainsAny(name, `/\`) || strings.HasPrefix(name, ".") {
		return "", s.Bad(key, "%q must be the name of a file in the mapper's directory of credentials, and no path", name)
	}
	return name, nil
}

// ReadCredentials reads the lines of a file in the mapper's directory of credentials: a user's name, a password, as the protocol has it.
// They are on the node, where the mapper's settings are, and not in the tree.
func ReadCredentials(dir, name string, least int) ([]string, error) {
	if dir == "" {
		return nil, errors.New("this mapper has no directory of credentials: set driver.credentialsDir")
	}
	b, err := os.ReadFile(filepath.Join(dir, filepath.Base(name)))
	if err != nil {
		return nil, fmt.Errorf("credentials %s: %w", name, err)
	}
	lines := strings.Split(strings.TrimRight(strings.ReplaceAll(string(b), "\r\n", "\n"), "\n"), "\n")
	if len(lines) < least || lines[0] == "" {
		return nil, fmt.Errorf("credentials %s: the file has %d lines, and must have %d", name, len(lines), least)
	}
	return lines, nil
}
