package resource

import (
	"cmp"
	"strings"
	"time"
)

// KindEvent is of the core group, v1, and of events.k8s.io.
const KindEvent = "Event"

// The types of an Event.
const (
	EventNormal  = "Normal"
	EventWarning = "Warning"
)

// Event is something that happened to an object, as often as it did. It has the form of
// Kubernetes' core/v1.
type Event struct {
	TypeMeta
	Metadata Meta `json:"metadata"`
	EventContent
}

// EventContent is an Event without its head.
type EventContent struct {
	// InvolvedObject is what it happened to.
	InvolvedObject ObjectReference `json:"involvedObject"`
	// Reason is what happened, in one word.
	Reason string `json:"reason,omitempty"`
	// Message is what happened the last time, for a reader.
	Message string `json:"message,omitempty"`
	// Source is the program that saw it.
	Source EventSource `json:"source,omitzero"`
	// FirstTimestamp is when it happened first.
	FirstTimestamp *time.Time `json:"firstTimestamp,omitempty"`
	// LastTimestamp is when it happened last.
	LastTimestamp *time.Time `json:"lastTimestamp,omitempty"`
	// Count is how often it happened.
	Count int `json:"count,omitempty"`
	// Type is Normal, or Warning where somebody may have to do something.
	Type string `json:"type,omitempty"`
	// EventTime is when it happened first, where the writer gives no other times.
	EventTime *MicroTime `json:"eventTime,omitempty"`
	// Series is how often it happened, where the writer gives no count.
	Series *EventSeries `json:"series,omitempty"`
	// Action is what was done about it.
	Action string `json:"action,omitempty"`
	// Related is another object that has to do with it.
	Related *ObjectReference `json:"related,omitempty"`
	// ReportingComponent is the program that saw it.
	ReportingComponent string `json:"reportingComponent,omitempty"`
	// ReportingInstance is which one of several such programs.
	ReportingInstance string `json:"reportingInstance,omitempty"`
}

// ObjectReference names an object.
type ObjectReference struct {
	// Kind is what the object is.
	Kind string `json:"kind,omitempty"`
	// Namespace is where the object is.
	Namespace string `json:"namespace,omitempty"`
	// Name is the object's.
	Name string `json:"name,omitempty"`
	// UID tells it from others that had its name.
	UID string `json:"uid,omitempty"`
	// APIVersion is the group and version of the kind.
	APIVersion string `json:"apiVersion,omitempty"`
	// ResourceVersion is the version of the object that is meant.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// FieldPath is the part of the object that is meant.
	FieldPath string `json:"fieldPath,omitempty"`
}

// String is what people call it: device/lamp.
func (o ObjectReference) String() string { return strings.ToLower(o.Kind) + "/" + o.Name }

// EventSource is a program that saw something.
type EventSource struct {
	// Component is the program's name.
	Component string `json:"component,omitempty"`
	// Host is where it ran.
	Host string `json:"host,omitempty"`
}

// EventSeries says how often something happened.
type EventSeries struct {
	// Count is how often it happened.
	Count int `json:"count,omitempty"`
	// LastObservedTime is when it happened last.
	LastObservedTime *MicroTime `json:"lastObservedTime,omitempty"`
}

// MicroTime is a time with the six decimals that Kubernetes' clients insist on. Written to us it may have any.
type MicroTime struct{ time.Time }

// MarshalJSON writes it.
func (t MicroTime) MarshalJSON() ([]byte, error) {
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05.000000Z07:00"`)), nil
}

// Occurrence is one thing that happened to an object. The recorder of events makes an Event of it, or raises the count of
// the Event that exists for the same object, reason and About.
type Occurrence struct {
	Kind, Namespace, Name string // of the object
	UID                   string // of the object; empty: whatever it is
	Type                  string // EventNormal, EventWarning
	Reason                string // what happened, in one word: NodeLeft
	About                 string // which part of the object: a property. Each has an Event of its own.
	Message               string
}

// Validate checks an Event.
func (e Event) Validate() error {
	var p problems
	e.Metadata.check(&p)
	if e.InvolvedObject.Name == "" {
		p.add("involvedObject.name", "must name what it happened to")
	}
	if e.Type != "" {
		oneOf(&p, "type", e.Type, []string{EventNormal, EventWarning})
	}
	return p.err()
}

// Times are when it happened first and last, and how often, wherever the writer put that.
func (e *Event) Times() (first, last *time.Time, count int) {
	first, last, count = e.FirstTimestamp, e.LastTimestamp, max(e.Count, 1)
	if e.EventTime != nil {
		first = cmp.Or(first, &e.EventTime.Time)
	}
	if e.Series != nil {
		count = max(e.Series.Count, count)
		if at := e.Series.LastObservedTime; at != nil {
			last = cmp.Or(last, &at.Time)
		}
	}
	first = cmp.Or(first, e.Metadata.CreationTimestamp)
	return first, cmp.Or(last, first), count
}

// Reporter is the program that saw it.
func (e *Event) Reporter() string { return cmp.Or(e.ReportingComponent, e.Source.Component) }
