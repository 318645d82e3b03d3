// SPDX-License-Identifier: Apache-2.0

package http

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
	"github.com/edgebus/edgebus/mappers/settings"
)

const protocol = "http"

// The ways to sign in.
const (
	authNone   = "none"
	authBasic  = "basic"
	authBearer = "bearer"
	authHeader = "header"
)

var authKinds = []string{authNone, authBasic, authBearer, authHeader}

// deviceConfig is a Device's configuration, understood.
type deviceConfig struct {
	base                  *url.URL
	auth, header          string
	credentials, ca, hook string // names of files
	timeout               time.Duration
	fields, commands      map[string]*field
	order, events         []*field
}

// field is where a property is, or what a command does.
type field struct {
	name        string
	spec        mappers.Property
	get         string // path of a request; empty: it comes by a hook
	path        jsonpath.Path
	method      string // of a write; empty: it can't be written
	target      string
	body        string
	contentType string
}

func parseDevice(d mappers.Device, timeout time.Duration) (c deviceConfig, err error) {
	s := settings.OfDevice(protocol, d)
	c.base, err = url.Parse(s.Get("url"))
	if err != nil || c.base.Scheme != "http" && c.base.Scheme != "https" || c.base.Host == "" || c.base.User != nil || c.base.RawQuery != "" {
		return c, s.Bad("url", "%q must be a URL such as http://10.0.0.9 or https://10.0.0.9/api, without user and query", s.Get("url"))
	}
	if c.auth, err = s.Choice("auth", authNone, authKinds...); err != nil {
		return c, err
	}
	for key, name := range map[string]*string{"credentials": &c.credentials, "ca": &c.ca, "hook": &c.hook} {
		if *name, err = s.FileName(key); err != nil {
			return c, err
		}
	}
	c.header = s.Get("header")
	switch {
	case (c.auth == authNone) != (c.credentials == ""):
		return c, s.Bad("credentials", "belongs to auth: with basic, bearer or header it is the name of a file, with none it is not set")
	case (c.auth == authHeader) != (c.header != ""):
		return c, s.Bad("header", "belongs to auth: header, which takes the header's name, such as X-Api-Key")
	case c.ca != "" && c.base.Scheme != "https":
		return c, s.Bad("ca", "belongs to an url with https")
	}
	if c.timeout, err = s.Duration("timeout", timeout, 10*time.Millisecond, 10*time.Minute); err != nil {
		return c, err
	}
	if err := s.Rest(protocolSettings.Device); err != nil {
		return c, err
	}
	c.fields, c.commands = map[string]*field{}, map[string]*field{}
	for _, p := range d.Properties {
		if !p.Visited {
			continue
		}
		f, err := parseField(p, protocolSettings.Property)
		if err != nil {
			return c, err
		}
		if f.get == "" && c.hook == "" {
			return c, settings.OfVisitor(protocol, p).Bad("get", "is required for a device without hook, such as /status")
		}
		c.fields[p.Name] = f
		c.order = append(c.order, f)
	}
	for _, p := range d.Events {
		f, err := parseField(p, protocolSettings.Event)
		if err != nil {
			return c, err
		}
		if c.hook == "" {
			return c, settings.OfVisitor(protocol, p).Bad("path", "is of a device with hook: events are what it sends")
		}
		c.events = append(c.events, f)
	}
	for _, p := range d.Commands {
		if c.commands[p.Name], err = parseField(p, protocolSettings.Command); err != nil {
			return c, err
		}
		if c.commands[p.Name].method == "" {
			return c, settings.OfVisitor(protocol, p).Bad("write", "is required: the request that the command makes, such as POST /reboot")
		}
	}
	return c, nil
}

var writeMethods = []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodGet, http.MethodDelete}

func parseField(p mappers.Property, table []mappers.ProtocolSetting) (*field, error) {
	s := settings.OfVisitor(protocol, p)
	f := &field{name: p.Name, spec: p, get: s.Get("get"), body: s.Get("body"), contentType: cmp.Or(s.Get("contentType"), "application/json")}
	var err error
	if f.get != "" && !isTarget(f.get) {
		return nil, s.Bad("get", "%q must be a path such as /status", f.get)
	}
	if text := s.Get("path"); text != "" {
		if f.path, err = jsonpath.Parse(text); err != nil {
			return nil, s.Bad("path", "%q %v", text, err)
		}
	}
	if text := s.Get("write"); text != "" {
		method, target, ok := strings.Cut(text, " ")
		f.method, f.target = strings.ToUpper(method), strings.TrimSpace(target)
		if !ok || !slices.Contains(writeMethods, f.method) || !isTarget(f.target) {
			return nil, s.Bad("write", "%q must be a method (%s) and a path, such as PUT /relay/0", text, strings.Join(writeMethods, ", "))
		}
	}
	if strings.ContainsAny(f.contentType, "\r\n") {
		return nil, s.Bad("contentType", "must be one line")
	}
	return f, s.Rest(table)
}

// isTarget reports whether a text is a path of the device's, and leads to no other host.
func isTarget(text string) bool {
	u, err := url.Parse(text)
	return err == nil && strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "//") && u.Host == "" && u.Fragment == ""
}
