// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
	"github.com/edgebus/edgebus/mappers/settings"
)

// eventSource is which of a server's events is an event of the model.
type eventSource struct {
	name     string
	notifier *field
	kind     *field // the type; nil: any
	source   string
	least    uint64 // severity
	field    *field // what it says; its node has the field's name; nil: a summary
}

// The fields of each event, in the order in which they are asked for.
var summaryFields = []string{"Time", "SourceName", "Severity", "Message"}

func parseEvent(p mappers.Property) (*eventSource, error) {
	s := settings.OfVisitor("opcua", p)
	e := &eventSource{name: p.Name, source: s.Get("source")}
	for key, at := range map[string]**field{"notifier": &e.notifier, "type": &e.kind} {
		text := s.Get(key)
		if text == "" && key == "notifier" {
			text = serverObject.String()
		}
		if text == "" {
			continue
		}
		f := &field{name: p.Name}
		var err error
		if f.node, f.namespace, err = wire.ParseNodeID(text); err != nil {
			return nil, s.Bad(key, "%q %v", text, err)
		}
		*at = f
	}
	least, err := s.Integer("minSeverity", 0, 1, 1000)
	if err != nil {
		return nil, err
	}
	e.least = uint64(least)
	if name := s.Get("field"); name != "" {
		e.field = &field{name: p.Name, spec: p}
		if e.field.node, e.field.namespace, err = wire.ParseNodeID(fieldAsNode(name)); err != nil {
			return nil, s.Bad("field", "%q must be a field's name: Message, or nsu=http://vendor/press;Load, or 2:Load", name)
		}
	}
	return e, s.Rest(protocolSettings.Event)
}

// fieldAsNode writes a field's name as a node's identifier, whose namespaces are found in the same way.
func fieldAsNode(name string) string {
	if number, rest, ok := strings.Cut(name, ":"); ok && strings.Trim(number, "0123456789") == "" && number != "" {
		return "ns=" + number + ";s=" + rest
	}
	if i := strings.LastIndexByte(name, ';'); i >= 0 && strings.HasPrefix(name, "nsu=") {
		return name[:i] + ";s=" + name[i+1:]
	}
	return "s=" + name
}

// eventNodes are those whose namespaces have to be found.
func (c *deviceConfig) eventNodes() (list []*field) {
	for _, e := range c.events {
		for _, f := range []*field{e.notifier, e.kind, e.field} {
			if f != nil {
				list = append(list, f)
			}
		}
	}
	return list
}

// eventRetry is how long after an error events are subscribed to again.
const eventRetry = time.Second

// Events implements mappers.EventSource: it subscribes again whenever the connection was lost.
func (s *session) Events(ctx context.Context, emit func(event, value string)) error {
	for len(s.config.events) > 0 && ctx.Err() == nil {
		if c, err := s.connect(ctx); err == nil {
			_ = s.tellEvents(ctx, c, emit) // the next attempt is soon, and readings say what is wrong with the connection
		}
		select {
		case <-ctx.Done():
		case <-time.After(eventRetry):
		}
	}
	<-ctx.Done()
	return nil
}

func (s *session) tellEvents(ctx context.Context, c *connection, emit func(event, value string)) error {
	var sources []*eventSource
	var items []wire.MonitoredItem
	refused := []string{}
	for _, e := range s.config.events {
		item, err := e.item(c)
		if err != nil {
			refused = append(refused, err.Error())
			continue
		}
		sources, items = append(sources, e), append(items, item)
	}
	s.device.Tell("Events", strings.Join(refused, "; "))
	bad := func(item int, err error) {
		refused = append(refused, fmt.Sprintf("%s: the server says %v to a subscription of events of %s", sources[item].name, err, sources[item].notifier.node))
		s.device.Tell("Events", strings.Join(refused, "; "))
	}
	return c.Subscribe(ctx, max(s.config.publish, 100*time.Millisecond), items, bad, func(change wire.Change) {
		e := sources[change.Item]
		opening, cancel := s.within(ctx)
		defer cancel()
		if value, ok := e.tell(opening, c, change.Fields); ok {
			emit(e.name, value)
		}
	})
}

// item is what is subscribed to.
func (e *eventSource) item(c *connection) (wire.MonitoredItem, error) {
	filter := &wire.EventFilter{}
	for _, name := range summaryFields {
		filter.Fields = append(filter.Fields, wire.EventField{Type: wire.BaseEventType, Path: []wire.QualifiedName{{Name: name}}})
	}
	node, ok := c.nodes[e.notifier]
	missing := e.notifier
	if e.kind != nil && ok {
		filter.Type, ok = c.nodes[e.kind]
		missing = e.kind
	}
	if e.field != nil && ok {
		var name wire.NodeID
		name, ok = c.nodes[e.field]
		missing = e.field
		kind := wire.BaseEventType
		if name.Namespace != 0 && e.kind != nil {
			kind = filter.Type
		}
		_, text, _ := strings.Cut(name.String(), "s=")
		filter.Fields = append(filter.Fields, wire.EventField{Type: kind, Path: []wire.QualifiedName{{Namespace: name.Namespace, Name: text}}})
	}
	if !ok {
		return wire.MonitoredItem{}, fmt.Errorf("%s: the server has no namespace %s", e.name, missing.namespace)
	}
	return wire.MonitoredItem{Node: node, Events: filter}, nil
}

// tell is what an event says, if it is one of those that are meant.
func (e *eventSource) tell(ctx context.Context, c *connection, fields []wire.Value) (value string, ok bool) {
	if len(fields) < len(summaryFields) {
		return "", false
	}
	plain := &field{node: e.notifier.node}
	said := map[string]string{}
	for i, name := range summaryFields {
		said[name], _ = plain.decode(fields[i]) // what is missing is empty
	}
	severity, _ := strconv.ParseUint(said["Severity"], 10, 16)
	if e.source != "" && said["SourceName"] != e.source || severity < e.least {
		return "", false
	}
	if e.field == nil {
		return string(encodeJSON(struct {
			Time     string `json:"time"`
			Source   string `json:"source"`
			Severity uint64 `json:"severity"`
			Message  string `json:"message"`
		}{said["Time"], said["SourceName"], severity, said["Message"]})), true
	}
	if len(fields) <= len(summaryFields) {
		return "", false
	}
	v, err := c.types.open(ctx, fields[len(summaryFields)])
	if err != nil {
		return "", false
	}
	value, err = e.field.decode(v)
	return value, err == nil
}
