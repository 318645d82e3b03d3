// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
	"github.com/edgebus/edgebus/mappers/settings"
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
	commands    map[string]*methodCall
	events      []*eventSource
}

// methodCall is what a command calls.
type methodCall struct {
	object, node *field // with the names of their namespaces
}

// field is where a property is.
type field struct {
	name      string
	spec      mappers.Property
	node      wire.NodeID
	namespace string        // its name, of which the server has the number; empty: the number is in node
	index     string        // of an array
	path      jsonpath.Path // of a structure
	sampling  time.Duration
}

func parseDevice(d mappers.Device, o Options) (c deviceConfig, err error) {
	s := settings.OfDevice("opcua", d)
	c.options = wire.Options{URL: s.Get("endpoint"), Name: "edgebus " + d.Node + "/" + d.Name, SessionTimeout: time.Minute}
	if _, err := wire.HostOf(c.options.URL); err != nil {
		return c, s.Bad("endpoint", "%q %v", c.options.URL, err)
	}
	if err := c.parseSecurity(s); err != nil {
		return c, err
	}
	if c.timeout, err = s.Duration("timeout", o.Timeout, 10*time.Millisecond, 10*time.Minute); err != nil {
		return c, err
	}
	if c.publish, err = s.Duration("publishingInterval", time.Second, 0, time.Hour); err != nil {
		return c, err
	}
	most, err := s.Integer("maxNodes", 0, 1, 10000)
	if err != nil {
		return c, err
	}
	c.most = int(most)
	if err := s.Rest(protocolSettings.Device); err != nil {
		return c, err
	}
	c.fields, c.commands = map[string]*field{}, map[string]*methodCall{}
	for _, p := range d.Commands {
		if c.commands[p.Name], err = parseMethod(p); err != nil {
			return c, err
		}
	}
	for _, p := range d.Events {
		e, err := parseEvent(p)
		if err != nil {
			return c, err
		}
		c.events = append(c.events, e)
	}
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

func (c *deviceConfig) parseSecurity(s settings.Reader) (err error) {
	if policy := s.Get("securityPolicy"); policy != "" && !strings.EqualFold(policy, "auto") {
		i := slices.IndexFunc(wire.Policies, func(p wire.Policy) bool { return strings.EqualFold(string(p), policy) })
		if i < 0 {
			return s.Bad("securityPolicy", "%q is none of auto, %v", policy, wire.Policies)
		}
		c.options.Policy = wire.Policies[i]
	}
	if mode := s.Get("securityMode"); mode != "" {
		if c.options.Mode, err = wire.ParseSecurityMode(mode); err != nil {
			return s.Bad("securityMode", "%q %v", mode, err)
		}
	}
	c.options.Fingerprint = strings.ReplaceAll(s.Get("fingerprint"), ":", "")
	if n := len(c.options.Fingerprint); n != 0 && n != 64 {
		return s.Bad("fingerprint", "must be the SHA-256 of the server's certificate: 64 hexadecimal digits")
	}
	c.credentials, err = s.FileName("credentials")
	return err
}

func parseField(p mappers.Property) (*field, error) {
	s := settings.OfVisitor("opcua", p)
	f := &field{name: p.Name, spec: p}
	text := s.Get("node")
	if text == "" {
		return nil, s.Bad("node", "is required, such as nsu=http://vendor/press;s=Temperature or ns=2;s=Temperature")
	}
	var err error
	if f.node, f.namespace, err = wire.ParseNodeID(text); err != nil {
		return nil, s.Bad("node", "%q %v", text, err)
	}
	f.index = s.Get("index")
	if strings.Trim(f.index, "0123456789:,") != "" {
		return nil, s.Bad("index", "%q must be a number such as 0, or a range such as 0:3", f.index)
	}
	if f.path, err = jsonpath.Parse(s.Get("path")); err != nil {
		return nil, s.Bad("path", "%v", err)
	}
	if f.sampling, err = s.Duration("samplingInterval", min(p.Collect, time.Second), 0, time.Hour); err != nil {
		return nil, err
	}
	return f, s.Rest(protocolSettings.Property)
}

func parseMethod(p mappers.Property) (*methodCall, error) {
	s := settings.OfVisitor("opcua", p)
	m := &methodCall{object: &field{name: p.Name}, node: &field{name: p.Name, spec: p}}
	for key, f := range map[string]*field{"object": m.object, "method": m.node} {
		text := s.Get(key)
		if text == "" {
			return nil, s.Bad(key, "is required: the object, and the method that is called of it")
		}
		var err error
		if f.node, f.namespace, err = wire.ParseNodeID(text); err != nil {
			return nil, s.Bad(key, "%q %v", text, err)
		}
	}
	return m, s.Rest(protocolSettings.Command)
}
