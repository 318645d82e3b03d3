package modbus

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
)

// deviceConfig is a Device's configuration, understood.
type deviceConfig struct {
	key    busKey
	unit   uint8
	gap    uint16
	fields map[string]*field
	first  *field // the first of the model's that can be reached; nil: none
}

// settings are a map of texts and the path where it stands. Keys are found whatever their case. What nobody asked for
// is a mistake.
type settings struct {
	path   string
	values map[string]string // by key in lower case
	used   map[string]bool
}

func newSettings(path string, config map[string]string) settings {
	s := settings{path: path, values: map[string]string{}, used: map[string]bool{}}
	for k, v := range config {
		s.values[strings.ToLower(k)] = strings.TrimSpace(v)
	}
	return s
}

// get returns the first of the keys that is set, and which it was.
func (s settings) get(keys ...string) (value, key string) {
	for _, k := range keys {
		low := strings.ToLower(k)
		s.used[low] = true
		if v := s.values[low]; v != "" && value == "" {
			value, key = v, k
		}
	}
	if key == "" {
		key = keys[0]
	}
	return value, key
}

func (s settings) bad(key, format string, args ...any) error {
	return mappers.BadConfig(s.path+key, format, args...)
}

func (s settings) integer(def, low, high int64, keys ...string) (int64, error) {
	text, key := s.get(keys...)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 0, 64) // 0x10 is how many manuals write it
	if err != nil || n < low || n > high {
		return 0, s.bad(key, "%q is no number from %d to %d", text, low, high)
	}
	return n, nil
}

func (s settings) number(def float64, keys ...string) (float64, error) {
	text, key := s.get(keys...)
	if text == "" {
		return def, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, s.bad(key, "%q is no number", text)
	}
	return f, nil
}

func (s settings) boolean(keys ...string) (bool, error) {
	text, key := s.get(keys...)
	if text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(strings.ToLower(text))
	if err != nil {
		return false, s.bad(key, "%q is neither true nor false", text)
	}
	return b, nil
}

// unknown reports a key that means nothing here.
func (s settings) unknown() error {
	var keys []string
	for k := range s.values {
		if !s.used[k] {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	return s.bad(keys[0], "is no setting of modbus")
}

const protocolPath = "spec.protocol.config."

func parseDevice(d mappers.Device, o Options) (c deviceConfig, err error) {
	s := newSettings(protocolPath, d.Config)
	if c.key.url, err = parseURL(s); err != nil {
		return c, err
	}
	unit, err := s.integer(1, 0, 255, "unit", "slaveID", "unitID")
	if err != nil {
		return c, err
	}
	gap, err := s.integer(8, 0, 100, "gap")
	if err != nil {
		return c, err
	}
	c.unit, c.gap, c.key.timeout = uint8(unit), uint16(gap), o.Timeout
	if text, key := s.get("timeout"); text != "" {
		if c.key.timeout, err = time.ParseDuration(text); err != nil || c.key.timeout <= 0 {
			return c, s.bad(key, "%q is no duration above 0, such as 2s", text)
		}
	}
	s.get("communicateMode") // KubeEdge's; TCP or RTU follows from the address
	if err := s.unknown(); err != nil {
		return c, err
	}
	c.fields = map[string]*field{}
	for _, p := range d.Properties {
		if !p.Visited && len(p.Config) == 0 {
			continue // the model doesn't say how to reach it: its reads and writes are refused
		}
		if c.fields[p.Name], err = parseField(p); err != nil {
			return c, err
		}
		if c.first == nil {
			c.first = c.fields[p.Name]
		}
	}
	return c, nil
}

func parseURL(s settings) (string, error) {
	text, key := s.get("address", "url")
	if ip, _ := s.get("ip", "host"); text == "" && ip != "" {
		port, err := s.integer(502, 1, 65535, "port", "tcpPort")
		if err != nil {
			return "", err
		}
		text = net.JoinHostPort(ip, strconv.FormatInt(port, 10))
	}
	s.get("port", "tcpPort")
	if text == "" {
		return "", s.bad(key, "is required: where the device is, such as tcp://10.0.0.5:502")
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		scheme, rest = "tcp", text
	}
	scheme = strings.ToLower(scheme)
	if scheme != "tcp" && scheme != "rtuovertcp" {
		return "", s.bad(key, "%q: %s is not supported; use tcp://host:port or rtuovertcp://host:port", text, scheme)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host, port = strings.Trim(rest, "[]"), "502"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || host == "" || strings.ContainsAny(host, "/ ") {
		return "", s.bad(key, "%q is no address of a host, such as tcp://10.0.0.5:502", text)
	}
	return fmt.Sprintf("%s://%s", scheme, net.JoinHostPort(host, port)), nil
}
