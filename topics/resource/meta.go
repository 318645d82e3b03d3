// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

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

// TypeMeta has the API version and the kind of an object.
type TypeMeta struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
}

// ListItems are the items of a list in a manifest, or the one object that it is. A list such as a DeviceList is of one kind, so its items may
// leave out apiVersion and kind, which they have here.
func ListItems(body []byte) (items []json.RawMessage, isList bool, err error) {
	var list struct {
		TypeMeta
		Items json.RawMessage `json:"items"`
	}
	kind, isList := "", false
	if json.Unmarshal(body, &list) == nil && len(list.Items) > 0 && string(list.Items) != "null" {
		kind, isList = strings.CutSuffix(list.Kind, "List")
	}
	if !isList {
		return []json.RawMessage{body}, false, nil
	}
	if json.Unmarshal(list.Items, &items) != nil {
		return nil, true, Errorf(Invalid, "items", "must be a list")
	}
	for i := range items {
		if kind != "" {
			items[i] = withType(items[i], TypeMeta{APIVersion: list.APIVersion, Kind: kind})
		}
	}
	return items, true, nil
}

// withType gives an object a type if it has none.
func withType(body []byte, of TypeMeta) []byte {
	var own TypeMeta
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &own) != nil || own != (TypeMeta{}) || json.Unmarshal(body, &fields) != nil || fields == nil {
		return body // who reads it says what is wrong
	}
	fields["apiVersion"], _ = json.Marshal(of.APIVersion)
	fields["kind"], _ = json.Marshal(of.Kind)
	with, _ := json.Marshal(fields) // as they were read
	return with
}

// Meta is an object's metadata. It reads and writes like Kubernetes' ObjectMeta.
type Meta struct {
	// Name is the object's name, unique within its kind and namespace; that of a Device is unique in all namespaces. 1 to 253
	// characters of a–z, 0–9, '-' and '.', of which the first and last are letters or digits.
	Name string `json:"name,omitempty"`
	// GenerateName is the prefix of the name that the hub generates when name is empty.
	GenerateName string `json:"generateName,omitempty"`
	// Namespace is the object's namespace: 1 to 63 characters of a–z, 0–9 and '-'; default when empty. Some kinds have no
	// namespaces.
	Namespace string `json:"namespace,omitempty"`
	// UID identifies the object: no other object has it, also none that has the same name later. Read-only.
	UID string `json:"uid,omitempty"`
	// ResourceVersion changes with each change of the object. An update that states it fails if the object has changed since
	// that version.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// SelfLink is ignored. Old Kubernetes servers set it.
	SelfLink string `json:"selfLink,omitempty"`
	// Generation is incremented by each change of the desired state. Read-only.
	Generation int64 `json:"generation,omitempty"`
	// CreationTimestamp is the time when the object was created. Read-only.
	CreationTimestamp *time.Time `json:"creationTimestamp,omitempty"`
	// DeletionTimestamp is the time when the deletion was requested. The object is removed when it has no finalizers and no
	// other object depends on it. Read-only.
	DeletionTimestamp *time.Time `json:"deletionTimestamp,omitempty"`
	// DeletionGracePeriodSeconds is 0 once the deletion was requested. Read-only.
	DeletionGracePeriodSeconds *int64 `json:"deletionGracePeriodSeconds,omitempty"`
	// Labels are keys and values by which objects are selected: at most 256.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are keys and values by which objects are not selected: at most 256 KiB altogether.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Finalizers name the tasks that must be finished before a deleted object is removed: at most 64.
	// +listType=set
	Finalizers []string `json:"finalizers,omitempty"`
	// Owner is the object that manages this one, as {Kind}/{name}. Only the owner sets and clears the field.
	Owner string `json:"owner,omitempty"`
	// OwnerReferences name the objects that created this one: at most 64. The hub deletes nothing because of them.
	// +listType=map
	// +listMapKey=uid
	OwnerReferences []OwnerReference `json:"ownerReferences,omitempty"`
	// ManagedFields record which manager owns which fields. They exist from the first server-side apply on.
	// +kubebuilder:validation:Type=array
	ManagedFields json.RawMessage `json:"managedFields,omitempty"`
}

// OwnerReference names an object that created another one.
type OwnerReference struct {
	// APIVersion is the group and version of the creating object.
	APIVersion string `json:"apiVersion"`
	// Kind is the kind of the creating object.
	Kind string `json:"kind"`
	// Name is the name of the creating object.
	Name string `json:"name"`
	// UID is the uid of the creating object. It tells that object from earlier ones with the same name.
	UID string `json:"uid"`
	// Controller says that the creating object manages this one.
	Controller *bool `json:"controller,omitempty"`
	// BlockOwnerDeletion has no effect. It is kept for other programs.
	BlockOwnerDeletion *bool `json:"blockOwnerDeletion,omitempty"`
}

// Condition is one aspect of an object's state.
type Condition struct {
	Type    string `json:"type"`              // the aspect, such as Ready
	Status  string `json:"status"`            // True, False, Unknown
	Reason  string `json:"reason,omitempty"`  // the reason for the status, in one word
	Message string `json:"message,omitempty"` // the reason, as a sentence for people
	// ObservedGeneration is the metadata.generation of the object that the condition describes. If it is lower than the
	// object's present one, the condition is older than the desired state.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// LastTransitionTime is the time when the status last changed.
	LastTransitionTime time.Time `json:"lastTransitionTime,omitzero"`
}

// maxConditions is the largest number of conditions of a status. It is bounded because merging compares each condition with
// each.
const maxConditions = 100

// CheckConditions returns an error for conditions without a type or status, and for more than 100 conditions.
func CheckConditions(list []Condition) error {
	var p causeList
	checkConditions(&p, "status.conditions", list)
	return p.err()
}

func checkConditions(p *causeList, at string, list []Condition) {
	if len(list) > maxConditions {
		p.add(at, "has %d conditions; at most %d are kept", len(list), maxConditions)
		return
	}
	for i, c := range list {
		checkRequired(p, fmt.Sprintf("%s[%d].type", at, i), c.Type)
		checkRequired(p, fmt.Sprintf("%s[%d].status", at, i), c.Status)
	}
}

// SameConditions reports whether two lists say the same, but for messages, generations and conditions of some types.
func SameConditions(a, b []Condition, except []string) bool {
	said := func(list []Condition) map[string]string {
		m := make(map[string]string, len(list))
		for _, c := range list {
			if !slices.Contains(except, c.Type) {
				m[c.Type] = c.Status + " " + c.Reason
			}
		}
		return m
	}
	return maps.Equal(said(a), said(b))
}

// SetCondition replaces the condition of c's type in list, or appends c. The transition time is now, or that of the replaced
// condition if its status is the same.
func SetCondition(list []Condition, c Condition, now time.Time) []Condition {
	old := findCondition(list, c.Type)
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

// findCondition returns the condition of a type in the list, or nil.
func findCondition(list []Condition, kind string) *Condition {
	for i := range list {
		if list[i].Type == kind {
			return &list[i]
		}
	}
	return nil
}

// ConditionOf is the condition of a type in the list; the zero value: there is none.
func ConditionOf(list []Condition, kind string) (c Condition) {
	if found := findCondition(list, kind); found != nil {
		c = *found
	}
	return c
}

// reasonOf is the reason of a condition that is True, and empty otherwise.
func reasonOf(list []Condition, kind string) string {
	if c := findCondition(list, kind); c != nil && c.Status == "True" {
		return c.Reason
	}
	return ""
}

// SetObservedGeneration sets the observedGeneration of the conditions of the given types.
func SetObservedGeneration(list []Condition, generation int64, types ...string) {
	for i := range list {
		if slices.Contains(types, list[i].Type) {
			list[i].ObservedGeneration = generation
		}
	}
}

// FormatTime formats a time as all timestamps of the bus are written: RFC 3339, UTC, milliseconds.
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// FormatMillis formats milliseconds since 1970 as Time does. The result for 0 is empty.
func FormatMillis(ms int64) string {
	if ms == 0 {
		return ""
	}
	return FormatTime(time.UnixMilli(ms))
}

// ParseTime reads a timestamp in RFC 3339.
func ParseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, Errorf(Invalid, "", "%s is not a time in RFC 3339, such as 2026-11-21T10:00:00Z", clipText(s))
	}
	return t, nil
}

// NewUID returns a random UUID (RFC 9562, version 4).
func NewUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

const (
	maxLabelPart  = 63 // bytes of a label's value, and of a key after its domain
	maxLabels     = 256
	maxFinalizers = 64        // finalizers, and owner references
	maxMetadata   = 256 << 10 // bytes of all annotations, as in Kubernetes
	maxListed     = 4096      // properties of a model, or entries of a Device's list, which are compared with one another
)

// Validate checks an object's metadata. The error names all broken rules.
func (m Meta) Validate() error { return m.ValidateChange(Meta{}) }

// ValidateChange checks only what differs from old, because a rule that was introduced after old was stored must not block
// other changes.
func (m Meta) ValidateChange(old Meta) error {
	var p causeList
	m.checkChange(&p, old)
	return p.err()
}

func (m Meta) check(p *causeList) { m.checkChange(p, Meta{}) }

func (m Meta) checkChange(p *causeList, old Meta) {
	switch {
	case m.Name == "" && m.GenerateName == "":
		p.add("metadata.name", "is required")
	case m.Name != "" && !topics.ValidName(m.Name):
		p.add("metadata.name", "%s: must be %s", clipText(m.Name), topics.NameRule())
	}
	if m.Namespace != "" && (!topics.ValidName(m.Namespace) || len(m.Namespace) > 63 || strings.Contains(m.Namespace, ".")) {
		p.add("metadata.namespace", "%s: must be 1–63 characters of a–z, 0–9 and '-'", clipText(m.Namespace))
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
			p.add(fmt.Sprintf("metadata.finalizers[%d]", i), "%s: a finalizer's name is %s", clipText(f), keyRule)
		}
	}
	if first, second := m.controllers(); second != "" && !reflect.DeepEqual(m.OwnerReferences, old.OwnerReferences) {
		p.add("metadata.ownerReferences", "%s and %s are both the controller; at most one owner is", clipText(first), clipText(second))
	}
	for i, o := range m.OwnerReferences {
		if slices.ContainsFunc(old.OwnerReferences, func(was OwnerReference) bool { return reflect.DeepEqual(was, o) }) {
			continue
		}
		at := fmt.Sprintf("metadata.ownerReferences[%d].", i)
		checkRequired(p, at+"apiVersion", o.APIVersion)
		checkRequired(p, at+"kind", o.Kind)
		checkRequired(p, at+"name", o.Name)
		checkRequired(p, at+"uid", o.UID)
	}
}

// controllers are the first two owners that say that they are the controller.
func (m Meta) controllers() (first, second string) {
	for _, o := range m.OwnerReferences {
		if o.Controller == nil || !*o.Controller {
			continue
		}
		name := o.Kind + "/" + o.Name
		if first != "" {
			return first, name
		}
		first = name
	}
	return first, ""
}

func (m Meta) checkAnnotations(p *causeList, old Meta) {
	for k := range m.Annotations {
		if _, had := old.Annotations[k]; !had && !validKey(k) {
			p.add("metadata.annotations", "%s: an annotation's name is %s", clipText(k), keyRule)
		}
	}
	if size := m.annotationBytes(); size > max(maxMetadata, old.annotationBytes()) {
		p.add("metadata.annotations", "%d bytes in all; at most %d are kept", size, maxMetadata)
	}
}

// annotationBytes is the size of all annotations, keys and values, in bytes.
func (m Meta) annotationBytes() (size int) {
	for k, v := range m.Annotations {
		size += len(k) + len(v)
	}
	return size
}

const (
	keyRule   = "1–63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit, after a domain and '/' if there is one"
	valueRule = "empty, or 1–63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
)

// validKey reports whether a text may name a label, an annotation or a finalizer.
func validKey(key string) bool {
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		name = key
	}
	return name != "" && ValidLabelValue(name) && (!prefixed || topics.ValidName(prefix))
}

// ValidLabelValue reports whether a text may be the value of a label. The rule is that of Kubernetes: selectors can name no others.
func ValidLabelValue(s string) bool {
	return s == "" || len(s) <= maxLabelPart && strings.Trim(s[:1]+s[len(s)-1:], "-_.") == s[:1]+s[len(s)-1:] &&
		!strings.ContainsFunc(s, func(c rune) bool { return !isKeyLetter(c) })
}

func checkLabels(p *causeList, field string, labels map[string]string) {
	for key, value := range labels {
		checkLabel(p, field, key, value)
	}
}

func checkLabel(p *causeList, field, key, value string) {
	if !validKey(key) {
		p.add(field, "%s: a label's name is %s", clipText(key), keyRule)
	}
	if !ValidLabelValue(value) {
		p.add(field+"["+key+"]", "%s: a label's value is %s", clipText(value), valueRule)
	}
}
