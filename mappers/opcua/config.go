package opcua

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
)

// deviceConfig is a Device's configuration, understood.
type deviceConfig struct {
	options     wire.Options
	credentials string // the name of a file with user and password; empty: anonymous
	timeout     time.Duration
	publish     time.Duration // of subscriptions; 0: none are made
	most        int           // nodes in one request; 0: learnt
	fields      map[string]*field
	order       []*field
}

// field is where a property is.
type field struct {
	name      string
	spec      mappers.Property
	node      wire.NodeID
	namespace string // its name, of which the server has the number; empty: the number is in node
	index     string // of an array
	sampling  time.Duration
}

const protocolPath = "spec.protocol.config."

// settings are a configuration's values and its path. Keys are found whatever their case.
type settings struct {
	path   string
	values map[string]string
	used   map[string]bool
}

func newSettings(path string, config map[string]string) settings {
	s := settings{path: path, values: map[string]string{}, used: map[string]bool{}}
	for k, v := range config {
		s.values[strings.ToLower(k)] = strings.TrimSpace(v)
	}
	return s
}

func (s settings) get(key string) string {
	s.used[strings.ToLower(key)] = true
	return s.values[strings.ToLower(key)]
}

func (s settings) bad(key, format string, args ...any) error {
	return mappers.BadConfig(s.path+key, format, args...)
}

func (s settings) integer(key string, def, low, high int64) (int64, error) {
	text := s.get(key)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, s.bad(key, "%q is no number from %d to %d", text, low, high)
	}
	return n, nil
}

func (s settings) duration(key string, def, low, high time.Duration) (time.Duration, error) {
	text := s.get(key)
	if text == "" {
		return def, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < low || d > high {
		return 0, s.bad(key, "%q is no time from %s to %s, such as %s", text, low, high, cmp.Or(def, low))
	}
	return d, nil
}

func (s settings) unknown() error {
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if !s.used[key] {
			return s.bad(key, "is no setting of opcua")
		}
	}
	return nil
}

func parseDevice(d mappers.Device, o Options) (c deviceConfig, err error) {
	s := newSettings(protocolPath, d.Config)
	c.options = wire.Options{URL: cmp.Or(s.get("endpoint"), s.get("url")), Name: "edgebus " + d.Node + "/" + d.Name, SessionTimeout: time.Minute}
	if _, err := wire.HostOf(c.options.URL); err != nil {
		return c, s.bad("endpoint", "%q %v", c.options.URL, err)
	}
	if err := c.parseSecurity(s); err != nil {
		return c, err
	}
	if c.timeout, err = s.duration("timeout", o.Timeout, 10*time.Millisecond, 10*time.Minute); err != nil {
		return c, err
	}
	if c.publish, err = s.duration("publishingInterval", time.Second, 0, time.Hour); err != nil {
		return c, err
	}
	most, err := s.integer("maxNodes", 0, 1, 10000)
	if err != nil {
		return c, err
	}
	c.most = int(most)
	if err := s.unknown(); err != nil {
		return c, err
	}
	c.fields = map[string]*field{}
	for _, p := range d.Properties {
		if !p.Visited {
			continue
		}
		f, err := parseField(p)
		if err != nil {
			return c, err
		}
		c.fields[p.Name] = f
		c.order = append(c.order, f)
	}
	return c, nil
}

func (c *deviceConfig) parseSecurity(s settings) (err error) {
	if policy := s.get("securityPolicy"); policy != "" && !strings.EqualFold(policy, "auto") {
		i := slices.IndexFunc(wire.Policies, func(p wire.Policy) bool { return strings.EqualFold(string(p), policy) })
		if i < 0 {
			return s.bad("securityPolicy", "%q is none of auto, %v", policy, wire.Policies)
		}
		c.options.Policy = wire.Policies[i]
	}
	if mode := s.get("securityMode"); mode != "" {
		if c.options.Mode, err = wire.ParseSecurityMode(mode); err != nil {
			return s.bad("securityMode", "%q %v", mode, err)
		}
	}
	c.options.Fingerprint = strings.ReplaceAll(s.get("fingerprint"), ":", "")
	if n := len(c.options.Fingerprint); n != 0 && n != 64 {
		return s.bad("fingerprint", "must be the SHA-256 of the server's certificate: 64 hexadecimal digits")
	}
	c.credentials = s.get("credentials")
	if strings.ContainsAny(c.credentials, `/\`) || strings.HasPrefix(c.credentials, ".") {
		return s.bad("credentials", "%q must be the name of a file in the mapper's directory of credentials", c.credentials)
	}
	return nil
}

func parseField(p mappers.Property) (*field, error) {
	s := newSettings("visitor "+p.Name+": config.", p.Config)
	f := &field{name: p.Name, spec: p}
	text := cmp.Or(s.get("node"), s.get("nodeID"))
	if text == "" {
		return nil, s.bad("node", "is required, such as nsu=http://vendor/press;s=Temperature or ns=2;s=Temperature")
	}
	var err error
	if f.node, f.namespace, err = wire.ParseNodeID(text); err != nil {
		return nil, s.bad("node", "%q %v", text, err)
	}
	f.index = s.get("index")
	if strings.Trim(f.index, "0123456789:,") != "" {
		return nil, s.bad("index", "%q must be a number such as 0, or a range such as 0:3", f.index)
	}
	if f.sampling, err = s.duration("samplingInterval", min(p.Collect, time.Second), 0, time.Hour); err != nil {
		return nil, err
	}
	return f, s.unknown()
}
