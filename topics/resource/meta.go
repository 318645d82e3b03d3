package resource

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/edgebus/edgebus/topics"
)

const (
	// Group is the API group of the canonical kinds.
	Group = "edgebus.io"
	// Version is the version of the group.
	Version = "v1alpha1"
	// APIVersion is what apiVersion says in a canonical object.
	APIVersion = Group + "/" + Version
	// DefaultNamespace is meant when none is given.
	DefaultNamespace = "default"
)

// The canonical kinds. Secret and ConfigMap are of the core group, v1.
const (
	KindDevice            = "Device"
	KindDeviceModel       = "DeviceModel"
	KindNode              = "Node"
	KindFleet             = "Fleet"
	KindTemplateVersion   = "TemplateVersion"
	KindRepository        = "Repository"
	KindResourceSync      = "ResourceSync"
	KindUpgrade           = "Upgrade"
	KindArtifact          = "Artifact"
	KindConfiguration     = "Configuration"
	KindInstance          = "Instance"
	KindEnrollmentRequest = "EnrollmentRequest"
	KindSecret            = "Secret"
	KindConfigMap         = "ConfigMap"
)

// TypeMeta says what an object is.
type TypeMeta struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
}

// Meta is an object's metadata. It reads and writes like Kubernetes' ObjectMeta.
type Meta struct {
	// Name is unique within kind and namespace; a Device's over all namespaces.
	Name string `json:"name,omitempty"`
	// GenerateName is what the hub makes a name of, if there is none.
	GenerateName string `json:"generateName,omitempty"`
	// Namespace is where the object is; default when empty. Some kinds have none.
	Namespace string `json:"namespace,omitempty"`
	// UID is never given twice. Read-only.
	UID string `json:"uid,omitempty"`
	// ResourceVersion changes with every change of the object. In an update it says which version was changed.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// SelfLink is what old servers said; it is ignored.
	SelfLink string `json:"selfLink,omitempty"`
	// Generation counts changes of what is wanted. Read-only.
	Generation int64 `json:"generation,omitempty"`
	// CreationTimestamp is when the object was created. Read-only.
	CreationTimestamp *time.Time `json:"creationTimestamp,omitempty"`
	// DeletionTimestamp is when the deletion began; the object goes when nothing holds it any more. Read-only.
	DeletionTimestamp *time.Time `json:"deletionTimestamp,omitempty"`
	// DeletionGracePeriodSeconds is 0 once the deletion has begun. Read-only.
	DeletionGracePeriodSeconds *int64 `json:"deletionGracePeriodSeconds,omitempty"`
	// Labels are for selecting.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are for whoever put them there.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Finalizers are what a deletion waits for.
	// +listType=set
	Finalizers []string `json:"finalizers,omitempty"`
	// Owner is who manages the object, as {Kind}/{name}. Only the owner itself sets or clears it.
	Owner string `json:"owner,omitempty"`
	// OwnerReferences name objects that made this one. Nothing is deleted because of them.
	// +listType=map
	// +listMapKey=uid
	OwnerReferences []OwnerReference `json:"ownerReferences,omitempty"`
	// ManagedFields says who owns which fields, from the first server-side apply on.
	// +kubebuilder:validation:Type=array
	ManagedFields json.RawMessage `json:"managedFields,omitempty"`
}

// OwnerReference names an object that made another.
type OwnerReference struct {
	// APIVersion is the group and version of the kind.
	APIVersion string `json:"apiVersion"`
	// Kind is what the object is.
	Kind string `json:"kind"`
	// Name is the object's.
	Name string `json:"name"`
	// UID tells it from others that had its name.
	UID string `json:"uid"`
	// Controller says that it manages this one.
	Controller *bool `json:"controller,omitempty"`
	// BlockOwnerDeletion is for others to heed.
	BlockOwnerDeletion *bool `json:"blockOwnerDeletion,omitempty"`
}

// Condition is one aspect of an object's state, with the time since which it holds.
type Condition struct {
	Type    string `json:"type"`              // the aspect
	Status  string `json:"status"`            // True, False, Unknown
	Reason  string `json:"reason,omitempty"`  // why, in one word
	Message string `json:"message,omitempty"` // why, for a reader
	// ObservedGeneration is the metadata.generation of the object that the condition is about: a lower one than the
	// object's own says that the condition is older than what is wanted.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// LastTransitionTime is since when the status is what it is.
	LastTransitionTime time.Time `json:"lastTransitionTime,omitzero"`
}

// maxConditions is how many conditions a status may have. Who merges them compares each with each.
const maxConditions = 100

// CheckConditions says which of a status' conditions don't say what they are about, or how it is.
func CheckConditions(list []Condition) error {
	var p problems
	checkConditions(&p, "status.conditions", list)
	return p.err()
}

func checkConditions(p *problems, at string, list []Condition) {
	if len(list) > maxConditions {
		p.add(at, "has %d conditions; at most %d are kept", len(list), maxConditions)
		return
	}
	for i, c := range list {
		required(p, fmt.Sprintf("%s[%d].type", at, i), c.Type)
		required(p, fmt.Sprintf("%s[%d].status", at, i), c.Status)
	}
}

// SetCondition puts c into list, keeping the transition time of one whose status is unchanged.
func SetCondition(list []Condition, c Condition, now time.Time) []Condition {
	old := find(list, c.Type)
	c.setTransitionTime(old, now)
	if old == nil {
		return append(list, c)
	}
	*old = c
	return list
}

// setTransitionTime sets the time to that of old, if that has the same status, and to now otherwise.
func (c *Condition) setTransitionTime(old *Condition, now time.Time) {
	c.LastTransitionTime = now.UTC().Truncate(time.Second) // as Kubernetes writes it
	if old != nil && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
}

// find returns the condition of a type in the list, or nil.
func find(list []Condition, kind string) *Condition {
	for i := range list {
		if list[i].Type == kind {
			return &list[i]
		}
	}
	return nil
}

// reasonOf is the reason of a condition that is True, and empty otherwise.
func reasonOf(list []Condition, kind string) string {
	if c := find(list, kind); c != nil && c.Status == "True" {
		return c.Reason
	}
	return ""
}

// SetObservedGeneration sets observedGeneration of the conditions of these types.
func SetObservedGeneration(list []Condition, generation int64, types ...string) {
	for i := range list {
		if slices.Contains(types, list[i].Type) {
			list[i].ObservedGeneration = generation
		}
	}
}

// Time formats a time the way every timestamp on the bus is written: RFC 3339, UTC, milliseconds.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// Millis formats milliseconds since 1970 like Time; 0 is the empty string.
func Millis(ms int64) string {
	if ms == 0 {
		return ""
	}
	return Time(time.UnixMilli(ms))
}

// ParseTime reads a timestamp in RFC 3339.
func ParseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, Errorf(Invalid, "", "%s is not a time in RFC 3339, such as 2026-11-21T10:00:00Z", clip(s))
	}
	return t, nil
}

// NewUID makes a random UUID (RFC 9562, version 4).
func NewUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

const (
	maxLabelPart  = 63
	maxLabels     = 256
	maxFinalizers = 64        // finalizers, and owner references
	maxMetadata   = 256 << 10 // bytes of all annotations, as in Kubernetes
	maxListed     = 4096      // properties of a model, and entries of a Device's lists: each is compared with the others
)

// Validate checks an object's metadata; the error names every broken rule.
func (m Meta) Validate() error { return m.ValidateChange(Meta{}) }

// ValidateChange checks only what differs from old: a rule that was introduced later must not block other changes.
func (m Meta) ValidateChange(old Meta) error {
	var p problems
	m.checkChange(&p, old)
	return p.err()
}

func (m Meta) check(p *problems) { m.checkChange(p, Meta{}) }

func (m Meta) checkChange(p *problems, old Meta) {
	switch {
	case m.Name == "" && m.GenerateName == "":
		p.add("metadata.name", "is required")
	case m.Name != "" && !topics.ValidName(m.Name):
		p.add("metadata.name", "%s: must be %s", clip(m.Name), topics.NameRule())
	}
	if m.Namespace != "" && (!topics.ValidName(m.Namespace) || len(m.Namespace) > 63 || strings.Contains(m.Namespace, ".")) {
		p.add("metadata.namespace", "%s: must be 1–63 characters of a–z, 0–9 and '-'", clip(m.Namespace))
	}
	if len(m.Labels) > max(maxLabels, len(old.Labels)) {
		p.add("metadata.labels", "more than %d labels", maxLabels)
	}
	for key, value := range m.Labels {
		if was, had := old.Labels[key]; !had || was != value {
			checkLabel(p, "metadata.labels", key, value)
		}
	}
	m.checkAnnotations(p, old)
	if len(m.Finalizers) > max(maxFinalizers, len(old.Finalizers)) {
		p.add("metadata.finalizers", "more than %d finalizers", maxFinalizers)
		return
	}
	if len(m.OwnerReferences) > max(maxFinalizers, len(old.OwnerReferences)) {
		p.add("metadata.ownerReferences", "more than %d owner references", maxFinalizers)
		return
	}
	for i, f := range m.Finalizers {
		if !slices.Contains(old.Finalizers, f) && !validKey(f) {
			p.add(fmt.Sprintf("metadata.finalizers[%d]", i), "%s: a finalizer's name is %s", clip(f), keyRule)
		}
	}
	for i, o := range m.OwnerReferences {
		if slices.ContainsFunc(old.OwnerReferences, func(was OwnerReference) bool { return reflect.DeepEqual(was, o) }) {
			continue
		}
		at := fmt.Sprintf("metadata.ownerReferences[%d].", i)
		required(p, at+"apiVersion", o.APIVersion)
		required(p, at+"kind", o.Kind)
		required(p, at+"name", o.Name)
		required(p, at+"uid", o.UID)
	}
}

func (m Meta) checkAnnotations(p *problems, old Meta) {
	for k := range m.Annotations {
		if _, had := old.Annotations[k]; !had && !validKey(k) {
			p.add("metadata.annotations", "%s: an annotation's name is %s", clip(k), keyRule)
		}
	}
	if size := m.annotationBytes(); size > max(maxMetadata, old.annotationBytes()) {
		p.add("metadata.annotations", "%d bytes in all; at most %d are kept", size, maxMetadata)
	}
}

// annotationBytes is how many bytes all annotations have.
func (m Meta) annotationBytes() (size int) {
	for k, v := range m.Annotations {
		size += len(k) + len(v)
	}
	return size
}

const keyRule = "1–63 letters, digits, '-', '_' and '.', after a domain and '/' if there is one"

// validKey is whether a text may name a label, an annotation or a finalizer.
func validKey(key string) bool {
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		name = key
	}
	bad := strings.ContainsFunc(name, func(c rune) bool { return !isKeyLetter(c) })
	return !bad && name != "" && len(name) <= maxLabelPart && (!prefixed || topics.ValidName(prefix))
}

func checkLabels(p *problems, field string, labels map[string]string) {
	for key, value := range labels {
		checkLabel(p, field, key, value)
	}
}

// checkLabel checks a label. Values may have characters that no selector can name, as the
// manifests of many do: blanks, colons.
func checkLabel(p *problems, field, key, value string) {
	if !validKey(key) {
		p.add(field, "%s: a label's name is %s", clip(key), keyRule)
	}
	if len(value) > maxLabelPart || strings.ContainsFunc(value, unicode.IsControl) {
		p.add(field+"["+key+"]", "%s: a label's value has at most %d bytes, and no control characters", clip(value), maxLabelPart)
	}
}
