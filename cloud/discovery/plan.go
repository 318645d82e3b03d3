// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/blake2b"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/templates"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	// OrderKind is the kind of the records of Orders. A record has the name of its Configuration, and no namespace.
	OrderKind = "DiscoveryOrder"
	// ApplicationsKind is the kind of the records of the applications that nodes run for Instances, under the nodes' names. It is
	// cloud/render's, which sends them.
	ApplicationsKind = "BrokerApplications"

	// ProblemsKind is the kind of the records of why applications are left out of what nodes are sent, by their names. It is cloud/render's,
	// which writes them under the nodes' names.
	ProblemsKind = "BrokerProblems"

	// finalizer keeps a Configuration until its Instances are gone, and an Instance until what was made of it is.
	finalizer = objects.DiscoveryFinalizer

	// Labels and annotations of what is made.
	configurationLabel = resource.Group + "/configuration"
	shortNameLabel     = "akri.sh/instance"
	instanceAnnotation = objects.InstanceAnnotation
	appliedAnnotation  = objects.DiscoveryAppliedAnnotation
)

// Order is what nodes are to look for, for one Configuration. It has no value of a Secret.
type Order struct {
	Namespace string                    `json:"namespace"`
	UID       string                    `json:"uid"`
	Nodes     []string                  `json:"nodes"` // sorted
	Request   resource.DiscoveryRequest `json:"request"`
	// Values are the discoveryProperties that are kept elsewhere.
	Values []ValueRef `json:"values,omitempty"`
}

// ValueRef is a property, and the Secret or ConfigMap that has its value.
type ValueRef struct {
	Property  string `json:"property"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Key       string `json:"key"`
}

// Value is what is known of the value of a ValueRef.
type Value struct {
	Found bool
	// Version is another one after each change, and tells nothing of a Secret's value.
	Version string
	Size    int
}

// maxValueBytes bounds the values of Secrets and ConfigMaps of a Configuration, in bytes: a node gets them as one value, in base64.
const maxValueBytes = 40 << 10

// PlanOrder is the order of a Configuration for nodes, which are sorted. problem says why there can be none; nodes keep the one before.
func PlanOrder(c *resource.Configuration, nodes []string, value func(ValueRef) (Value, error)) (o Order, problem string, err error) {
	h := c.Spec.DiscoveryHandler
	o = Order{Namespace: c.Metadata.Namespace, UID: c.Metadata.UID, Nodes: nodes}
	o.Request = resource.DiscoveryRequest{Handler: h.Name}
	for name, value := range h.DiscoveryDetails {
		if o.Request.Details == nil {
			o.Request.Details = map[string]string{}
		}
		o.Request.Details[name] = string(value)
	}
	secrets, size := sha256.New(), 0
	for _, p := range h.DiscoveryProperties {
		ref, optional, ok := valueRefOf(p, c.Metadata.Namespace)
		if !ok {
			if o.Request.Properties == nil {
				o.Request.Properties = make(map[string]string)
			}
			o.Request.Properties[p.Name] = p.Value
			continue
		}
		v, err := value(ref)
		if err != nil {
			return o, "", err
		}
		if !v.Found && !optional {
			return o, fmt.Sprintf("%s: there is no %s %s/%s with the key %s", p.Name, ref.Kind, ref.Namespace, ref.Name, ref.Key), nil
		}
		if v.Found {
			fmt.Fprintf(secrets, "%q %q\n", p.Name, v.Version)
			size += len(p.Name) + v.Size
			o.Values = append(o.Values, ref)
		}
	}
	if size > maxValueBytes {
		return o, fmt.Sprintf("the values of Secrets and ConfigMaps have %d bytes; at most %d are sent to handlers", size, maxValueBytes), nil
	}
	if len(o.Values) > 0 {
		o.Request.Secrets = hex.EncodeToString(secrets.Sum(nil)[:8])
	}
	o.Request.Version, err = hashJSON(o.Request)
	return o, "", err
}

func valueRefOf(p resource.DiscoveryProperty, namespace string) (ref ValueRef, optional, ok bool) {
	if p.ValueFrom == nil {
		return ref, false, false
	}
	key := p.ValueFrom.SecretKeyRef
	ref = ValueRef{Property: p.Name, Kind: resource.KindSecret}
	if key == nil {
		key, ref.Kind = p.ValueFrom.ConfigMapKeyRef, resource.KindConfigMap
	}
	if key == nil {
		return ref, false, false
	}
	ref.Namespace, ref.Name, ref.Key = cmp.Or(key.Namespace, namespace), key.Name, key.Key
	return ref, key.Optional, true
}

func hashJSON(v any) (string, error) {
	text, err := json.Marshal(v)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), err
}

// InstanceName is the name of the Instance of a device: the Configuration's and a hash of the device's id, and of the node for a device
// that others don't see.
func InstanceName(configuration, id, node string, shared bool) string {
	h := sha256.New()
	fmt.Fprint(h, id)
	if !shared {
		fmt.Fprint(h, "\x00", node)
	}
	return configuration + "-" + hex.EncodeToString(h.Sum(nil)[:16])
}

// InstanceShortName is the name that Akri gives the Instance, with a hash of 24 bits: two devices of a Configuration may have the same.
func InstanceShortName(configuration, id, node string, shared bool) string {
	h, err := blake2b.New(3, nil)
	if err != nil {
		return "" // 3 is a size that there is
	}
	fmt.Fprint(h, id)
	if !shared {
		fmt.Fprint(h, node)
	}
	return configuration + "-" + hex.EncodeToString(h.Sum(nil))
}

// Sighting is what a node says of a device that it sees.
type Sighting struct {
	Node   string
	Device resource.DiscoveredDevice
}

// InstanceState is what PlanInstance decides by.
type InstanceState struct {
	Name          string
	Configuration *resource.Configuration // nil: there is none, or it is being deleted
	Instance      *resource.Instance      // nil: there is none
	Sightings     []Sighting              // one of each node that sees it, in the order of their names
	Hosts         map[string]HostState    // the nodes that see or use it, by name
	HubStarted    time.Time               // the hub has known of nodes since then: it can't say that one was offline before
	Now           time.Time
}

// HostState is what the hub knows of a node that sees or uses a device.
type HostState struct {
	// Offline is since when it is offline; zero: it is online.
	Offline time.Time
	// Agent says that an agent has reported from it.
	Agent bool
	// Applications are those that the agent has reported, by name, with their Status and Message.
	Applications map[string]resource.ApplicationStatus
	// LeftOut are the applications that the node is not sent, by name, and why.
	LeftOut map[string]string
	// Problem is why an application of its spec may be missing: the spec can't be rendered, or the node could not apply it. Empty: no reason
	// is known.
	Problem string
}

// InstancePlan is what is to become of an Instance.
type InstancePlan struct {
	// Delete says that the Instance goes, and what was made of it.
	Delete bool
	// Instance is as it should be, but for conditions of others; nil: none is made, or nothing changes.
	Instance *resource.Instance
	// Again is when to look again if nothing changes; 0: never.
	Again time.Duration
}

// IsManaged says whether an Instance was made of what nodes found; others are somebody's own and left alone.
func IsManaged(i *resource.Instance) bool {
	return slices.ContainsFunc(i.Metadata.OwnerReferences, func(o resource.OwnerReference) bool {
		return o.Kind == resource.KindConfiguration && o.Controller != nil && *o.Controller
	})
}

// PlanInstance decides what becomes of an Instance.
func PlanInstance(s InstanceState) (p InstancePlan) {
	old := s.Instance
	switch {
	case old != nil && !IsManaged(old):
		return p
	case old != nil && (old.Metadata.DeletionTimestamp != nil || s.Configuration == nil || !isOwnedBy(old, s.Configuration)):
		return InstancePlan{Delete: true}
	case s.Configuration == nil, old == nil && len(s.Sightings) == 0:
		return p
	}
	next := new(resource.Instance)
	if old != nil {
		*next = *old
	} else {
		next = newInstance(s)
	}
	if len(s.Sightings) == 0 {
		gone := cmp.Or(next.Status.LastSeen, resource.FormatTime(s.Now))
		since, err := resource.ParseTime(gone)
		left := s.Configuration.Spec.GracePeriod.Of(next.Spec.Shared)
		if err == nil {
			left -= s.Now.Sub(since)
		}
		if left <= 0 {
			return InstancePlan{Delete: true}
		}
		p.Again = left
		next.Spec.Nodes, next.Status.LastSeen = nil, gone
		next.Status.Conditions = setCondition(next.Status.Conditions, next.Metadata, s.Now, resource.ConditionVisible, false, "Gone",
			"no node sees it since "+gone+"; without a change it is removed at "+resource.FormatTime(s.Now.Add(left)))
	} else {
		p.Again = applySightings(next, s)
	}
	if len(s.Configuration.Spec.BrokerSpec) > 0 {
		next.Status.Conditions = resource.SetCondition(slices.Clone(next.Status.Conditions), instanceBrokerCondition(s.Configuration, next, s.Hosts), s.Now)
	} else {
		next.Status.Conditions = withoutCondition(next.Status.Conditions, resource.ConditionBrokerReady)
	}
	p.Instance = next
	return p
}

// withoutCondition are conditions without those of a type.
func withoutCondition(list []resource.Condition, kind string) []resource.Condition {
	return slices.DeleteFunc(slices.Clone(list), func(c resource.Condition) bool { return c.Type == kind })
}

func isOwnedBy(i *resource.Instance, c *resource.Configuration) bool {
	return slices.ContainsFunc(i.Metadata.OwnerReferences, func(o resource.OwnerReference) bool { return o.UID == c.Metadata.UID })
}

func newInstance(s InstanceState) *resource.Instance {
	c, first := s.Configuration, s.Sightings[0]
	yes := true
	i := &resource.Instance{Metadata: resource.Meta{
		Name: s.Name, Namespace: c.Metadata.Namespace, Finalizers: []string{finalizer}, Labels: map[string]string{},
		OwnerReferences: []resource.OwnerReference{{
			APIVersion: resource.APIVersion, Kind: resource.KindConfiguration, Name: c.Metadata.Name, UID: c.Metadata.UID, Controller: &yes,
		}},
	}}
	i.Spec.ConfigurationName, i.Spec.ID, i.Spec.Shared = c.Metadata.Name, first.Device.ID, first.Device.Shared
	i.Spec.ShortName = InstanceShortName(c.Metadata.Name, first.Device.ID, first.Node, first.Device.Shared)
	for label, value := range map[string]string{configurationLabel: c.Metadata.Name, shortNameLabel: i.Spec.ShortName} {
		if len(value) <= 63 {
			i.Metadata.Labels[label] = value
		}
	}
	return i
}

// applySightings puts into an Instance what nodes say of it, and who uses it. again is when a slot may have to move if nothing changes; 0: never.
func applySightings(i *resource.Instance, s InstanceState) (again time.Duration) {
	c := s.Configuration
	i.Spec.Nodes = nil
	for _, one := range s.Sightings {
		i.Spec.Nodes = append(i.Spec.Nodes, one.Node)
	}
	i.Spec.Capacity = 1
	if c.Spec.Capacity != nil {
		i.Spec.Capacity = *c.Spec.Capacity
	}
	if len(c.Spec.BrokerSpec) > 0 || c.Spec.DeviceTemplate != nil {
		i.Spec.DeviceUsage, again = AssignSlots(i.Metadata.Name, i.Spec.Capacity, i.Spec.DeviceUsage, s.candidates(i))
	} else {
		i.Spec.DeviceUsage, _ = AssignSlots(i.Metadata.Name, i.Spec.Capacity, nil, nil)
	}
	device := s.Sightings[0].Device
	user := DeviceNode(i)
	for _, one := range s.Sightings {
		if one.Node == user {
			device = one.Device
		}
	}
	i.Spec.BrokerProperties = brokerProperties(c, device)
	i.Spec.Mounts, i.Spec.DeviceSpecs = device.Mounts, device.DeviceSpecs
	i.Status.LastSeen = ""
	i.Status.Conditions = setCondition(i.Status.Conditions, i.Metadata, s.Now, resource.ConditionVisible, true, "Seen", "seen by "+objects.JoinFirst(i.Spec.Nodes))
	return again
}

// candidates are the nodes that see an Instance. Of a shared one those that are offline get no slots; they keep theirs, with
// failover AfterGrace for the rest of the grace period. Without another node nothing is gained by taking a slot from a node.
func (s InstanceState) candidates(i *resource.Instance) (list []SlotCandidate) {
	for _, one := range s.Sightings {
		c := SlotCandidate{Node: one.Node}
		if off := s.Hosts[one.Node].Offline; i.Spec.Shared && !off.IsZero() {
			c.Offline = true
			if off.Before(s.HubStarted) {
				off = s.HubStarted
			}
			if s.Configuration.Spec.Failover == resource.FailoverAfterGrace {
				c.Yields, c.YieldsIn = true, max(s.Configuration.Spec.GracePeriod.OfNode()-s.Now.Sub(off), 0)
			}
		}
		list = append(list, c)
	}
	return list
}

// SlotCandidate is a node that sees a device and may have one of its slots.
type SlotCandidate struct {
	Node string
	// Offline says that it is offline: it gets no slot, but keeps one that it has.
	Offline bool
	// Yields says that it gives up its slot to another candidate, In so long.
	Yields   bool
	YieldsIn time.Duration
}

// AssignSlots gives the slots of an Instance's capacity to nodes that see it: each gets one at most, and keeps it for as long as it sees
// the device and doesn't yield to another one. Which nodes get the first ones depends on the name, so that devices are spread over nodes. A node
// to which a slot has moved keeps it when the former one is back. again is when a slot may have to move; 0: never.
func AssignSlots(name string, capacity int, before map[string]string, nodes []SlotCandidate) (slots map[string]string, again time.Duration) {
	slots, has := make(map[string]string, capacity), make(map[string]bool)
	by := make(map[string]SlotCandidate, len(nodes))
	for _, c := range nodes {
		by[c.Node] = c
	}
	slot := func(i int) string { return fmt.Sprintf("%s-%d", name, i) }
	for i := range capacity {
		node := before[slot(i)]
		if _, sees := by[node]; !sees || has[node] {
			node = ""
		}
		slots[slot(i)], has[node] = node, true
	}
	waiting := slices.DeleteFunc(slices.Clone(nodes), func(c SlotCandidate) bool { return c.Offline || has[c.Node] })
	rank := func(node string) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name + "\x00" + node)) // a hash never fails
		return h.Sum64()
	}
	slices.SortFunc(waiting, func(a, b SlotCandidate) int {
		return cmp.Or(cmp.Compare(rank(a.Node), rank(b.Node)), cmp.Compare(a.Node, b.Node))
	})
	for i := 0; i < capacity && len(waiting) > 0; i++ {
		if slots[slot(i)] == "" {
			slots[slot(i)], waiting = waiting[0].Node, waiting[1:]
		}
	}
	for i := 0; i < capacity && len(waiting) > 0; i++ {
		if c := by[slots[slot(i)]]; c.Yields && c.YieldsIn == 0 {
			slots[slot(i)], waiting = waiting[0].Node, waiting[1:]
		}
	}
	for i := 0; i < capacity && len(waiting) > 0; i++ {
		if c := by[slots[slot(i)]]; c.Yields && (again == 0 || c.YieldsIn < again) {
			again = c.YieldsIn
		}
	}
	return slots, again
}

// nodesUsing are the nodes that use an Instance, sorted.
func nodesUsing(i *resource.Instance) []string {
	nodes := slices.Compact(slices.Sorted(maps.Values(i.Spec.DeviceUsage)))
	return slices.DeleteFunc(nodes, func(node string) bool { return node == "" })
}

// DeviceNode is the node of the first slot that is used; empty: there is none. It is the node of the Device.
func DeviceNode(i *resource.Instance) string {
	for n := range i.Spec.Capacity {
		if node := i.Spec.DeviceUsage[fmt.Sprintf("%s-%d", i.Metadata.Name, n)]; node != "" {
			return node
		}
	}
	return ""
}

// setCondition sets a condition of an object.
func setCondition(list []resource.Condition, of resource.Meta, now time.Time, kind string, holds bool, reason, message string) []resource.Condition {
	c := resource.Condition{Type: kind, Status: "False", Reason: reason, Message: message, ObservedGeneration: of.Generation}
	if holds {
		c.Status = "True"
	}
	return resource.SetCondition(slices.Clone(list), c, now)
}

// DevicePlan is what is to become of the Device of an Instance.
type DevicePlan struct {
	// Device is what the template makes; nil: nothing is written.
	Device *resource.Device
	// Exists says that the Device is there, and is to be brought up to date: see Merge.
	Exists bool
	// Delete are the names of Devices that are to be deleted once Device is written.
	Delete []string
	// Existing is the Device that there is of the Instance before any of that, and Name the one that there is afterwards; empty: none.
	Existing, Name string
	// Onboarded, Reason and Message are the condition Onboarded.
	Onboarded       bool
	Reason, Message string
}

// Reasons of Onboarded that end without a change of the Instance or its Configuration.
const reasonNameTaken, reasonRefused = "NameTaken", "Refused"

// PlanDevice decides what becomes of the Device of an Instance that is there: the one that its status names, or else the one with the
// name that the template makes. get reads a Device of the Instance's namespace; nil: there is none.
func PlanDevice(t *resource.DeviceTemplate, i *resource.Instance, get func(name string) (*resource.Device, error)) (p DevicePlan, err error) {
	want, problem := expandDevice(t, i)
	var has, next *resource.Device // that there is of the Instance, and that there is with the name that it is to have
	if want != nil {
		if next, err = get(want.Metadata.Name); err != nil {
			return p, err
		}
	}
	if has = next; i.Status.Device != "" && (want == nil || i.Status.Device != want.Metadata.Name) {
		if has, err = get(i.Status.Device); err != nil {
			return p, err
		}
		if has == nil || !IsMadeOf(has, i.Metadata.Name) {
			has = next
		}
	}
	stays := ""
	if has != nil && IsMadeOf(has, i.Metadata.Name) {
		p.Existing, p.Name = has.Metadata.Name, has.Metadata.Name
		stays = "; the Device " + p.Existing + " stays as it is"
	} else {
		has = nil
	}
	not := func(reason, message string) (DevicePlan, error) {
		p.Reason, p.Message = reason, message+stays
		return p, nil
	}
	switch approval := i.Spec.Approval; {
	case approval == resource.Denied && has != nil && !IsEdited(has):
		p.Delete, stays = []string{p.Existing}, ""
		return not("Denied", "spec.approval is Denied")
	case approval == resource.Denied:
		return not("Denied", "spec.approval is Denied")
	case t == nil:
		return not("NoTemplate", "the Configuration has no deviceTemplate")
	case approval == "" && t.Approval == resource.ApprovalManual:
		return not("WaitingForApproval", "set spec.approval to Approved or Denied")
	case has != nil && IsEdited(has):
		p.Onboarded, p.Reason, p.Message = true, "Edited", "somebody has edited the Device "+p.Existing+", which is theirs since"
		return p, nil
	case problem != nil:
		return not("TemplateFailed", problem.Error())
	case want.Spec.NodeName == "":
		return not("NoNode", "no node uses it")
	case next != nil && !IsMadeOf(next, i.Metadata.Name):
		return not(reasonNameTaken, "the Device "+want.Metadata.Name+" was not made of this Instance and is left alone")
	case next != nil && next.Metadata.DeletionTimestamp != nil:
		p.Reason, p.Message = "Deleting", "the Device "+want.Metadata.Name+" is being deleted"
		return p, nil
	}
	p.Name, p.Onboarded, p.Reason, p.Message = want.Metadata.Name, true, "Created", "the Device "+want.Metadata.Name+" was made of it"
	if has != nil && p.Existing != p.Name { // the template gives it another name
		p.Delete = []string{p.Existing}
	}
	if next == nil || !IsEdited(next) {
		p.Device, p.Exists = want, next != nil
	}
	return p, nil
}

// MergeDevice brings a Device up to date with what its template makes. Desired values are given once, and other fields of its metadata are left
// alone.
func MergeDevice(d, want *resource.Device) {
	d.Spec.DeviceModelRef, d.Spec.Protocol, d.Spec.NodeName = want.Spec.DeviceModelRef, want.Spec.Protocol, want.Spec.NodeName
	with := func(has, want map[string]string) map[string]string {
		out := maps.Clone(has)
		if out == nil {
			out = make(map[string]string)
		}
		maps.Copy(out, want)
		return out
	}
	d.Metadata.Labels = with(d.Metadata.Labels, want.Metadata.Labels)
	d.Metadata.Annotations = with(d.Metadata.Annotations, want.Metadata.Annotations)
	d.Metadata.OwnerReferences = want.Metadata.OwnerReferences
}

// IsMadeOf says whether a Device was made of an Instance, which may have been another one of the same name.
func IsMadeOf(d *resource.Device, instance string) bool {
	return d.Metadata.Annotations[instanceAnnotation] == instance
}

// IsEdited says whether anybody has changed the spec of a Device since it was made of an Instance. Desired values are no edit.
func IsEdited(d *resource.Device) bool {
	return d.Metadata.Annotations[appliedAnnotation] != appliedHash(d.Spec)
}

func appliedHash(s resource.DeviceSpec) string {
	s.Desired, s.DesiredUntil = nil, nil
	hash, _ := hashJSON(s) // texts and numbers
	return hash
}

// CheckTemplate says what is wrong with a deviceTemplate, whatever is found.
func CheckTemplate(t *resource.DeviceTemplate) error {
	return templates.Check(t, "spec.deviceTemplate")
}

// expandDevice is the Device that a template makes of an Instance; nil, without a problem: there is no template.
func expandDevice(t *resource.DeviceTemplate, i *resource.Instance) (d *resource.Device, problem error) {
	if t == nil {
		return nil, nil //nolint:nilnil // it makes none
	}
	properties := i.Spec.BrokerProperties
	if properties == nil {
		properties = map[string]string{}
	}
	node := DeviceNode(i)
	out, err := templates.Expand(t, map[string]any{
		"id": i.Spec.ID, "name": i.Metadata.Name, "configuration": i.Spec.ConfigurationName, "node": node, "shared": i.Spec.Shared, "properties": properties,
	}, "spec.deviceTemplate", "Instance "+i.Metadata.Name)
	if err != nil {
		return nil, err
	}
	yes := true
	d = &resource.Device{}
	d.Spec = resource.DeviceSpec{DeviceModelRef: out.Spec.DeviceModelRef, Protocol: out.Spec.Protocol, Desired: out.Spec.Desired, NodeName: node}
	d.Metadata = resource.Meta{
		Name: i.Metadata.Name, Namespace: i.Metadata.Namespace, Labels: map[string]string{}, Annotations: map[string]string{},
		OwnerReferences: []resource.OwnerReference{{
			APIVersion: resource.APIVersion, Kind: resource.KindInstance, Name: i.Metadata.Name, UID: i.Metadata.UID, Controller: &yes,
		}},
	}
	if m := out.Metadata; m != nil {
		d.Metadata.Name = cmp.Or(m.Name, d.Metadata.Name)
		for key, value := range m.Labels {
			if !resource.ValidLabelValue(value) { // a device says what it is in its own words
				value = resource.LabelValue(value)
			}
			d.Metadata.Labels[key] = value
		}
		maps.Copy(d.Metadata.Annotations, m.Annotations)
	}
	d.Metadata.Annotations[instanceAnnotation], d.Metadata.Annotations[appliedAnnotation] = i.Metadata.Name, appliedHash(d.Spec)
	if !topics.ValidName(d.Metadata.Name) {
		return nil, fmt.Errorf("spec.deviceTemplate.metadata.name: %.80q: must be %s", d.Metadata.Name, topics.NameRule())
	}
	if err := d.Validate(); err != nil {
		return nil, err
	}
	return d, nil
}

// HandlerReports is what the nodes of an Order say of its handler.
type HandlerReports struct {
	Reports      map[string]resource.HandlerReport // by node
	DeviceCounts map[string]int                    // how many devices a node sees
	ExcessCounts map[string]int                    // how many more it reports than count
	// Discovers are the nodes that run edgediscovery: it has a presence, or says something of a handler for any Configuration. The others are expected
	// to have a handler only if they were Selected.
	Discovers map[string]bool
	Selected  bool
}

// HandlerConditions are HandlerReady and DetailsAccepted of a Configuration.
func HandlerConditions(list []resource.Condition, of resource.Meta, o Order, s HandlerReports, now time.Time) []resource.Condition {
	var missing, failing, refused, accepted, beyond []string
	why, told, expected := "", "", 0
	for _, node := range o.Nodes {
		r, has := s.Reports[node]
		current := r.Version == "" || r.Version == o.Request.Version
		if !has && s.DeviceCounts[node] == 0 && !s.Selected && !s.Discovers[node] {
			continue
		}
		expected++
		if s.ExcessCounts[node] > 0 {
			beyond = append(beyond, node)
		}
		switch {
		case !has && s.DeviceCounts[node] > 0: // a discoverer that doesn't say anything of itself
			accepted = append(accepted, node)
		case !has || r.State == resource.HandlerMissing:
			missing = append(missing, node)
		case !current: // it has not answered yet
		case r.State == resource.HandlerFailing:
			failing = append(failing, node)
			why = cmp.Or(why, r.Message)
		case r.State == resource.HandlerRefused:
			refused = append(refused, node)
			why = cmp.Or(why, r.Message)
		default:
			accepted = append(accepted, node)
			if r.Message != "" {
				told = cmp.Or(told, "; "+node+": "+r.Message)
			}
		}
	}
	ready, reason, message := true, "Ready", fmt.Sprintf("all %d nodes have the handler %s%s", expected, o.Request.Handler, told)
	switch {
	case len(o.Nodes) == 0:
		ready, reason, message = false, "NoNodes", "no node is chosen by spec.nodeSelector"
	case expected == 0:
		ready, reason, message = false, "NoHandler", fmt.Sprintf("no node has a handler %s: none of %d runs edgediscovery", o.Request.Handler, len(o.Nodes))
	case len(failing) > 0:
		ready, reason, message = false, "Failing", fmt.Sprintf("the handler %s fails on %s: %s", o.Request.Handler, objects.JoinFirst(failing), why)
		if len(missing) > 0 {
			message += fmt.Sprintf("; %d of %d nodes have none: %s", len(missing), expected, objects.JoinFirst(missing))
		}
	case len(beyond) > 0:
		ready, reason = false, "TooManyDevices"
		message = fmt.Sprintf("more than %d devices are reported by %s: the others are left out, %d by %s", maxSightings, objects.JoinFirst(beyond), s.ExcessCounts[beyond[0]], beyond[0])
	case len(missing) > 0:
		ready, reason = false, "NoHandler"
		message = fmt.Sprintf("%d of %d nodes have no handler %s: %s", len(missing), expected, o.Request.Handler, objects.JoinFirst(missing))
	}
	list = setCondition(list, of, now, resource.ConditionHandlerReady, ready, reason, message)
	switch {
	case len(refused) > 0:
		return setCondition(list, of, now, resource.ConditionDetailsAccepted, false, "Refused", "refused on "+objects.JoinFirst(refused)+": "+why)
	case len(accepted) > 0:
		return setCondition(list, of, now, resource.ConditionDetailsAccepted, true, "Accepted", "accepted on "+objects.JoinFirst(accepted))
	}
	reason, message = "NoAnswer", "no handler has answered yet"
	if len(failing) > 0 { // what it answered breaks a rule, or it can't be asked
		reason, message = "Failing", "the handler fails on "+objects.JoinFirst(failing)+": "+why
	}
	return resource.SetCondition(list, resource.Condition{
		Type: resource.ConditionDetailsAccepted, Status: "Unknown", Reason: reason, Message: message, ObservedGeneration: of.Generation,
	}, now)
}

// cleanName is a text of which a systemd unit or a name can be made.
func cleanName(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(text))
}
