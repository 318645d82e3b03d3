package api

import (
	"encoding/json"
	"strconv"

	"github.com/edgebus/edgebus/topics/resource"
)

// eventKind is what people see; describe asks for it as well.
func eventKind() Kind {
	return Kind{
		Name: resource.KindEvent, Plural: "events", Singular: "event", Short: []string{"ev"}, Namespaced: true,
		Version: "v1", Flat: true, NoStatus: true, Bare: true,
		New:      func() any { return new(resource.Event) },
		Validate: rules(resource.Event.Validate, nil),
		Node:     ofEvent,
		Columns: []Column{
			{Name: "Last Seen", Type: "string", Description: "How long ago it happened last."},
			{Name: "Type", Type: "string", Description: "Normal or Warning."},
			{Name: "Reason", Type: "string", Description: "What happened, in one word."},
			{Name: "Object", Type: "string", Description: "What it happened to."},
			{Name: "Count", Type: "string", Description: "How often it happened."},
			{Name: "Message", Type: "string", Description: "What happened the last time."},
			{Name: "First Seen", Type: "string", Description: "How long ago it happened first.", Wide: true},
			{Name: "Source", Type: "string", Description: "The program that saw it.", Wide: true},
			{Name: "Name", Type: "string", Description: "Name of the object.", Wide: true},
		},
		Cells: cells(func(e *resource.Event) []any {
			first, last, count := e.Times()
			return []any{
				last, e.Type, e.Reason, e.InvolvedObject.String(), strconv.Itoa(count), e.Message,
				first, e.Reporter(), e.Metadata.Name,
			}
		}),
		Fields: eventFields("involvedObject", "reportingComponent"),
	}
}

// eventForm is the same kind as events.k8s.io has it: some fields have other names there.
func eventForm() Kind {
	k := eventKind()
	k.Group = "events.k8s.io"
	k.Fields = eventFields("regarding", "reportingController")
	k.Names = map[string]string{
		"involvedObject": "regarding", "message": "note", "reportingComponent": "reportingController",
		"source": "deprecatedSource", "count": "deprecatedCount",
		"firstTimestamp": "deprecatedFirstTimestamp", "lastTimestamp": "deprecatedLastTimestamp",
	}
	return k
}

func eventFields(of, reporter string) map[string]func(any) string {
	object := func(get func(resource.ObjectReference) string) func(any) string {
		return field(func(e *resource.Event) string { return get(e.InvolvedObject) })
	}
	return map[string]func(any) string{
		"reason":                field(func(e *resource.Event) string { return e.Reason }),
		"type":                  field(func(e *resource.Event) string { return e.Type }),
		"source":                field((*resource.Event).Reporter),
		reporter:                field((*resource.Event).Reporter),
		of + ".kind":            object(func(o resource.ObjectReference) string { return o.Kind }),
		of + ".namespace":       object(func(o resource.ObjectReference) string { return o.Namespace }),
		of + ".name":            object(func(o resource.ObjectReference) string { return o.Name }),
		of + ".uid":             object(func(o resource.ObjectReference) string { return o.UID }),
		of + ".apiVersion":      object(func(o resource.ObjectReference) string { return o.APIVersion }),
		of + ".resourceVersion": object(func(o resource.ObjectReference) string { return o.ResourceVersion }),
		of + ".fieldPath":       object(func(o resource.ObjectReference) string { return o.FieldPath }),
	}
}

// renamed is the object with the names of the kind's group.
func (k *Kind) renamed(o *object) (json.RawMessage, error) {
	head, fields := *o, map[string]json.RawMessage{}
	head.APIVersion = k.apiVersion()
	if len(o.Spec) == 0 { // of one that is nobody's business any more only the name is told
		return head.encode()
	}
	if err := json.Unmarshal(o.Spec, &fields); err != nil {
		return nil, err
	}
	rename(fields, k.Names)
	spec, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	head.Spec = spec
	return head.encode()
}

// canonical gives the fields that a client sent the names that they have here.
func (k *Kind) canonical(tree map[string]any) {
	back := make(map[string]string, len(k.Names))
	for ours, theirs := range k.Names {
		back[theirs] = ours
		delete(tree, ours) // has no meaning there
	}
	rename(tree, back)
}

func rename[V any](fields map[string]V, names map[string]string) {
	for from, to := range names {
		if v, ok := fields[from]; ok {
			delete(fields, from)
			fields[to] = v
		}
	}
}
