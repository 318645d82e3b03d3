// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"strings"
	"time"
)

// KindEvent is the kind Event of the core group, v1, and of events.k8s.io.
const KindEvent = "Event"

// The types of an Event.
const (
	EventNormal  = "Normal"
	EventWarning = "Warning"
)

// Event reports something that happened to an object, once or several times. It has the form of Kubernetes' core/v1.
type Event struct {
	TypeMeta
	Metadata Meta `json:"metadata"`
	EventContent
}

// EventContent is an Event without its kind and metadata.
type EventContent struct {
	// InvolvedObject is the object to which it happened.
	InvolvedObject ObjectReference `json:"involvedObject"`
	// Reason is what happened, in one word.
	Reason string `json:"reason,omitempty"`
	// Message describes the last occurrence, for people.
	Message string `json:"message,omitempty"`
	// Source is the program that reported it.
	Source EventSource `json:"source,omitzero"`
	// FirstTimestamp is the time of the first occurrence.
	FirstTimestamp *time.Time `json:"firstTimestamp,omitempty"`
	// LastTimestamp is the time of the last occurrence.
	LastTimestamp *time.Time `json:"lastTimestamp,omitempty"`
	// Count is the number of occurrences.
	Count int `json:"count,omitempty"`
	// Type is Normal, or Warning if a person may have to act.
	Type string `json:"type,omitempty"`
	// EventTime is the time of the first occurrence, in Events of writers that set no other times.
	EventTime *MicroTime `json:"eventTime,omitempty"`
	// Series has the number of occurrences, in Events of writers that set no count.
	Series *EventSeries `json:"series,omitempty"`
	// Action is what was done about it.
	Action string `json:"action,omitempty"`
	// Related is another object that is concerned.
	Related *ObjectReference `json:"related,omitempty"`
	// ReportingComponent is the program that reported it, in Events of writers that set no source.
	ReportingComponent string `json:"reportingComponent,omitempty"`
	// ReportingInstance identifies one of several instances of that program.
	ReportingInstance string `json:"reportingInstance,omitempty"`
}

// ObjectReference refers to an object.
type ObjectReference struct {
	// Kind is the kind of the object.
	Kind string `json:"kind,omitempty"`
	// Namespace is the namespace of the object.
	Namespace string `json:"namespace,omitempty"`
	// Name is the name of the object.
	Name string `json:"name,omitempty"`
	// UID is the uid of the object. It tells the object from earlier ones with the same name.
	UID string `json:"uid,omitempty"`
	// APIVersion is the group and version of the kind.
	APIVersion string `json:"apiVersion,omitempty"`
	// ResourceVersion is the version of the object that is concerned.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// FieldPath is the part of the object that is concerned.
	FieldPath string `json:"fieldPath,omitempty"`
}

// String names the object for people: device/lamp.
func (o ObjectReference) String() string { return strings.ToLower(o.Kind) + "/" + o.Name }

// EventSource is a program that reports Events.
type EventSource struct {
	// Component is the name of the program.
	Component string `json:"component,omitempty"`
	// Host is the host on which it ran.
	Host string `json:"host,omitempty"`
}

// EventSeries counts the occurrences of an Event.
type EventSeries struct {
	// Count is the number of occurrences.
	Count int `json:"count,omitempty"`
	// LastObservedTime is the time of the last occurrence.
	LastObservedTime *MicroTime `json:"lastObservedTime,omitempty"`
}

// MicroTime is a time that is written with six decimals, as Kubernetes' clients require. It is read with any number of them.
type MicroTime struct{ time.Time }

// MarshalJSON writes the time.
func (t MicroTime) MarshalJSON() ([]byte, error) {
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05.000000Z07:00"`)), nil
}

// Occurrence is one occurrence to be reported. The recorder of Events creates an Event for it, or increments the count of the
// Event that exists for the same object, reason and About.
type Occurrence struct {
	Kind, Namespace, Name string // of the object
	UID                   string // of the object; empty: any
	Type                  string // EventNormal, EventWarning
	Reason                string // what happened, in one word: NodeLeft
	About                 string // the part of the object, such as a property; each part has its own Event
	Message               string
	Node                  string // that reported it; empty: the hub saw it itself
}

// Validate checks an Event.
func (e Event) Validate() error {
	var p causeList
	e.Metadata.check(&p)
	if e.InvolvedObject.Name == "" {
		p.add("involvedObject.name", "must name what it happened to")
	}
	if e.Type != "" {
		checkOneOf(&p, "type", e.Type, []string{EventNormal, EventWarning})
	}
	return p.err()
}

// Times returns the times of the first and last occurrence, and their number, whichever fields have them.
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

// Complete sets the EventTime of an Event that has none: clients of events.k8s.io require it.
func (e *Event) Complete(now time.Time) {
	if e.EventTime == nil {
		e.EventTime = &MicroTime{*cmp.Or(e.FirstTimestamp, e.Metadata.CreationTimestamp, &now)}
	}
}

// Reporter is the program that reported the Event.
func (e *Event) Reporter() string { return cmp.Or(e.ReportingComponent, e.Source.Component) }
