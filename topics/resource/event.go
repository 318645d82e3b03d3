package resource

import "time"

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
	EventTime string `json:"eventTime,omitempty"`
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
	Kind            string `json:"kind,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	Name            string `json:"name,omitempty"`
	UID             string `json:"uid,omitempty"`
	APIVersion      string `json:"apiVersion,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	FieldPath       string `json:"fieldPath,omitempty"`
}

// EventSource is a program that saw something.
type EventSource struct {
	Component string `json:"component,omitempty"`
	Host      string `json:"host,omitempty"`
}

// EventSeries says how often something happened.
type EventSeries struct {
	Count            int    `json:"count,omitempty"`
	LastObservedTime string `json:"lastObservedTime,omitempty"`
}

// Happening is told by who sees something happen to an object, and becomes an Event, or raises
// the count of one.
type Happening struct {
	Kind, Namespace, Name string // of the object
	UID                   string // of the object; empty: whatever it is
	Type                  string // EventNormal, EventWarning
	Reason                string // what happened, in one word: NodeLeft
	About                 string // which part of the object: a property. Each has an Event of its own.
	Message               string
}
