package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func deviceKind() Kind {
	known := new(models)
	return Kind{
		Name: resource.KindDevice, Plural: "devices", Singular: "device", Short: []string{"dev"}, Namespaced: true,
		New:        func() any { return new(resource.Device) },
		Private:    []string{"desiredMeta"},
		Validate:   known.validateDevice,
		Doubts:     nothingThere,
		Node:       ofDevice,
		UniqueName: true,
		Prepare: func(old, next any, origin string, now time.Time) {
			prev, _ := old.(*resource.Device)
			resource.Stamp(prev, next.(*resource.Device), origin, now)
		},
		StatusAfter: known.statusAfter,
		Holds: func(obj any) []store.Key {
			d := obj.(*resource.Device)
			return []store.Key{modelOf(d)}
		},
		Columns: []Column{
			{Name: "Node", Type: "string", Path: ".spec.nodeName", Description: "The node that the device belongs to."},
			{Name: "Model", Type: "string", Path: ".spec.deviceModelRef.name", Description: "The DeviceModel that describes it."},
			{Name: "State", Type: "string", Path: ".status.state", Description: "online, offline or unknown, as its mapper says."},
			{Name: "In-Sync", Type: "string", Path: ".status.conditions[?(@.type==\"InSync\")].status", Description: "Whether every property is as it is wanted."},
			{Name: "Protocol", Type: "string", Path: ".spec.protocol.type", Description: "The protocol that reaches it.", Wide: true},
			{Name: "Last-Seen", Type: "string", Path: ".status.lastSeen", Description: "When it last reported anything.", Wide: true},
			{Name: "Reported", Type: "string", Description: "The values that it reported last.", Wide: true},
		},
		Cells: func(obj any) []any {
			d := obj.(*resource.Device)
			return []any{
				d.Spec.NodeName, d.Spec.DeviceModelRef.Name, orUnknown(d.Status.State),
				condition(d.Status.Conditions, "InSync"), d.Spec.Protocol.Type, d.Status.LastSeen, reported(d.Status.Twin),
			}
		},
		Fields: map[string]func(any) string{
			"spec.nodeName": func(obj any) string { return obj.(*resource.Device).Spec.NodeName },
		},
		Bulk: bulk{
			"metadata": nil,
			"spec":     {"desired": nil, "desiredUntil": nil, "propertyVisitors": nil},
			"status": {"twin": {"*": {
				"desired": nil, "override": nil, "refused": nil, "conflict": nil, "problem": nil, "inSync": nil,
				"reported": {"ver": nil, "ts": nil, "origin": nil, "for": nil},
			}}},
		},
	}
}

// A row's values have to fit on a screen; a file or an array does not.
const (
	cellValue = 24 // of one value
	cellWidth = 96 // of all of them
)

// reported writes the reported values of a twin in a row: power=ON,temperature=21.5.
func reported(twin map[string]resource.TwinProperty) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(twin)) {
		value := twin[name].Reported
		if value == nil {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		if b.Len() >= cellWidth {
			b.WriteString("…")
			break
		}
		b.WriteString(name + "=" + shortened(value.Value, cellValue))
	}
	return b.String()
}

// shortened is the beginning of a text, without anything that could steer a terminal.
func shortened(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, text)
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

func modelKind() Kind {
	return Kind{
		Name: resource.KindDeviceModel, Plural: "devicemodels", Singular: "devicemodel", Short: []string{"dm"}, Namespaced: true,
		New:      func() any { return new(resource.DeviceModel) },
		Doubts:   booleanWords,
		Validate: rules(resource.DeviceModel.Validate, nil),
		HeldBy:   devicesOf,
		Columns: []Column{
			{Name: "Properties", Type: "integer", Description: "How many properties it has."},
			{Name: "Status", Type: "string", Description: "Active, or Terminating while its deletion waits for those that hold it."},
			{Name: "Protocols", Type: "string", Description: "The protocols it has visitors for.", Wide: true},
		},
		Cells: func(obj any) []any {
			m := obj.(*resource.DeviceModel)
			var protocols []string
			for _, v := range m.Spec.PropertyVisitors {
				protocols = append(protocols, v.Protocol)
			}
			status := "Active"
			if m.Metadata.DeletionTimestamp != nil {
				status = "Terminating"
			}
			return []any{len(m.Spec.Properties), status, strings.Join(protocols, ",")}
		},
	}
}

func modelOf(d *resource.Device) store.Key {
	return store.Key{Kind: resource.KindDeviceModel, Namespace: d.Metadata.Namespace, Name: d.Spec.DeviceModelRef.Name}
}

// validateDevice checks a Device by itself and, if its model is there already,
// reads its wanted values by the model, and checks them against it.
func (m *models) validateDevice(ctx context.Context, r store.Reader, old, next any) error {
	d := next.(*resource.Device)
	if err := d.Validate(); err != nil {
		return err
	}
	key := modelOf(d)
	model, err := m.get(ctx, r, key)
	if errors.Is(err, resource.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	prev, _ := old.(*resource.Device)
	newcomer := prev == nil || modelOf(prev) != key
	if model.Metadata.DeletionTimestamp != nil && newcomer {
		return resource.Errorf(resource.Invalid, "spec.deviceModelRef.name", "the DeviceModel %s is being deleted", model.Metadata.Name)
	}
	d.Mean(*model)
	return d.CheckModel(*model)
}

// statusAfter brings a Device's status up to its spec.
func (m *models) statusAfter(ctx context.Context, r store.Reader, old, next any, status []byte, now time.Time) ([]byte, error) {
	d := next.(*resource.Device)
	model, err := m.get(ctx, r, modelOf(d))
	if err != nil && !errors.Is(err, resource.NotFound) {
		return nil, err
	}
	prev, _ := old.(*resource.Device)
	return d.StatusAfter(prev, status, model, now)
}

// nothingThere doubts that a Device was to be given a node or a model that isn't there. They may be to come.
func nothingThere(ctx context.Context, r store.Reader, old, next any) (doubts []string) {
	d := next.(*resource.Device)
	var was resource.Device
	if prev, ok := old.(*resource.Device); ok {
		was = *prev
	}
	if name := d.Spec.NodeName; name != "" && name != was.Spec.NodeName && !there(ctx, r, store.Key{Kind: resource.KindNode, Name: name}) {
		doubts = append(doubts, "spec.nodeName: there is no Node "+name+"; its devices wait until a core of that name connects")
	}
	if name := d.Spec.DeviceModelRef.Name; name != was.Spec.DeviceModelRef.Name && !there(ctx, r, modelOf(d)) {
		doubts = append(doubts, "spec.deviceModelRef.name: there is no DeviceModel "+name+"; the device waits until there is, and its desired values are not checked yet")
	}
	return doubts
}

// booleanWords doubts that true and false were to be texts: without quotes YAML reads ON, OFF, yes and no as these.
func booleanWords(_ context.Context, _ store.Reader, _, next any) (doubts []string) {
	for i, p := range next.(*resource.DeviceModel).Spec.Properties {
		if p.Type != "" && p.Type != resource.TypeString {
			continue
		}
		if slices.ContainsFunc(p.Enum, func(v resource.Value) bool { return v == "true" || v == "false" }) {
			doubts = append(doubts, fmt.Sprintf("spec.properties[%d].enum: a text of %s may be true or false: if ON, OFF, yes or no is meant, "+
				"write it in quotes, for without them YAML reads a boolean", i, p.Name))
		}
	}
	return doubts
}

// devicesOf lists the devices that use a model.
func devicesOf(ctx context.Context, r store.Reader, key store.Key) ([]string, error) {
	page, err := r.List(ctx, resource.KindDevice, store.ListOptions{Namespace: key.Namespace})
	if err != nil {
		return nil, err
	}
	quoted, err := json.Marshal(key.Name)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, o := range page.Items {
		if !bytes.Contains(o.Data, quoted) {
			continue // most devices, without decoding them
		}
		var d resource.Device
		if json.Unmarshal(o.Data, &d) == nil && d.Spec.DeviceModelRef.Name == key.Name {
			names = append(names, o.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}
