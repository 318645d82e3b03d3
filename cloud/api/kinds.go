package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Kinds are the canonical kinds, in the order of discovery. Their dialects follow from topics/dialect.
func Kinds() []Kind {
	kinds := []Kind{
		deviceKind(), modelKind(), nodeKind(), fleetKind(), templateVersionKind(), repositoryKind(), resourceSyncKind(),
		upgradeKind(), configurationKind(), instanceKind(), enrollmentKind(),
	}
	for i := range kinds {
		kinds[i].Group, kinds[i].Version = resource.Group, resource.Version
	}
	return append(kinds, secretKind(), configMapKind(), eventKind(), eventsEventKind())
}

func orUnknown(state string) string {
	if state == "" {
		return resource.Unknown
	}
	return state
}

func condition(list []resource.Condition, kind string) string {
	for _, c := range list {
		if c.Type == kind {
			return c.Status
		}
	}
	return "Unknown"
}

func deviceKind() Kind {
	known := new(modelCache)
	return Kind{
		Name: resource.KindDevice, Plural: "devices", Singular: "device", Short: []string{"dev"}, Namespaced: true,
		New:        func() any { return new(resource.Device) },
		Reset:      resetDevice,
		Validate:   known.validateDevice,
		Warnings:   warnMissingReferences,
		Node:       nodeOfDevice,
		UniqueName: true,
		Prepare: func(old, next any, origin string, now time.Time) {
			prev, _ := old.(*resource.Device)
			resource.Stamp(prev, next.(*resource.Device), origin, now)
		},
		PrepareStatus: known.prepareStatus,
		References: func(obj any) []store.Key {
			d := obj.(*resource.Device)
			return []store.Key{modelKey(d)}
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
		TableOmits: omit{
			"metadata": nil,
			"spec":     {"desired": nil, "desiredUntil": nil, "propertyVisitors": nil},
			"status": {"twin": {"*": {
				"desired": nil, "override": nil, "refused": nil, "conflict": nil, "problem": nil, "inSync": nil,
				"reported": {"ver": nil, "ts": nil, "origin": nil, "for": nil},
			}}},
		},
	}
}

// resetDevice is Kind.Reset of a Device.
func resetDevice(obj any) []string {
	d := obj.(*resource.Device)
	if d.DesiredMeta == nil {
		return nil
	}
	d.DesiredMeta = nil
	return []string{"desiredMeta"}
}

// The reported values of a table row are shortened, since a value can be a file or an array.
const (
	cellValue = 24 // characters of one value
	cellWidth = 96 // bytes of all of them
)

// reported is the cell with the reported values of a twin: power=ON,temperature=21.5.
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
		b.WriteString(name + "=" + printable(value.Value, cellValue))
	}
	return b.String()
}

// printable is the beginning of a text, without control characters, which a terminal would obey.
func printable(text string, most int) string {
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
		New:          func() any { return new(resource.DeviceModel) },
		Warnings:     warnBooleanEnum,
		Validate:     validator(resource.DeviceModel.Validate, nil),
		ReferencedBy: devicesUsing,
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

func modelKey(d *resource.Device) store.Key {
	return store.Key{Kind: resource.KindDeviceModel, Namespace: d.Metadata.Namespace, Name: d.Spec.DeviceModelRef.Name}
}

// validateDevice checks a Device by itself and, if its DeviceModel exists already, brings the desired values into the
// form of their types and checks them against the model.
func (m *modelCache) validateDevice(ctx context.Context, r store.Reader, old, next any) error {
	d := next.(*resource.Device)
	if err := d.Validate(); err != nil {
		return err
	}
	key := modelKey(d)
	model, err := m.get(ctx, r, key)
	if errors.Is(err, resource.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	prev, _ := old.(*resource.Device)
	if model.Metadata.DeletionTimestamp != nil && (prev == nil || modelKey(prev) != key) {
		return resource.Errorf(resource.Invalid, "spec.deviceModelRef.name", "the DeviceModel %s is being deleted", model.Metadata.Name)
	}
	d.ResolveBooleans(*model)
	return d.CheckModel(*model)
}

// prepareStatus brings the status of a Device up to date with its spec.
func (m *modelCache) prepareStatus(ctx context.Context, r store.Reader, old, next any, status []byte, now time.Time) ([]byte, error) {
	d := next.(*resource.Device)
	model, err := m.get(ctx, r, modelKey(d))
	if err != nil && !errors.Is(err, resource.NotFound) {
		return nil, err
	}
	prev, _ := old.(*resource.Device)
	return d.StatusAfter(prev, status, model, now)
}

// warnMissingReferences warns of a new node or model of a Device that doesn't exist. It is no error: it may come later.
func warnMissingReferences(ctx context.Context, r store.Reader, old, next any) (warnings []string) {
	d := next.(*resource.Device)
	var was resource.Device
	if prev, ok := old.(*resource.Device); ok {
		was = *prev
	}
	if name := d.Spec.NodeName; name != "" && name != was.Spec.NodeName && !mayExist(ctx, r, store.Key{Kind: resource.KindNode, Name: name}) {
		warnings = append(warnings, "spec.nodeName: there is no Node "+name+"; its devices wait until a core of that name connects")
	}
	if name := d.Spec.DeviceModelRef.Name; name != was.Spec.DeviceModelRef.Name && !mayExist(ctx, r, modelKey(d)) {
		warnings = append(warnings, "spec.deviceModelRef.name: there is no DeviceModel "+name+"; the device waits until there is, and its desired values are not checked yet")
	}
	return warnings
}

// warnBooleanEnum warns of true and false in the enum of a string: many YAML parsers make them of ON, OFF, yes and no.
func warnBooleanEnum(_ context.Context, _ store.Reader, _, next any) (warnings []string) {
	for i, p := range next.(*resource.DeviceModel).Spec.Properties {
		if p.Type != "" && p.Type != resource.TypeString {
			continue
		}
		if slices.ContainsFunc(p.Enum, func(v resource.Value) bool { return v == "true" || v == "false" }) {
			warnings = append(warnings, fmt.Sprintf("spec.properties[%d].enum: a text of %s may be true or false: if ON, OFF, yes or no is meant, "+
				"write it in quotes, for without them YAML reads a boolean", i, p.Name))
		}
	}
	return warnings
}

// devicesUsing returns the names of the Devices that use a model.
func devicesUsing(ctx context.Context, r store.Reader, key store.Key) ([]string, error) {
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
			continue // not decoding most Devices
		}
		var d resource.Device
		if json.Unmarshal(o.Data, &d) == nil && d.Spec.DeviceModelRef.Name == key.Name {
			names = append(names, o.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

const maxCachedModels = 256

// modelCache caches decoded DeviceModels by revision: many Devices have the same model, and decoding a large one would
// be most of the cost of writing a Device. A model is never stale, since its revision is read each time. Callers must
// not change it.
type modelCache struct {
	mu   sync.Mutex
	read map[store.Key]cachedModel
}

type cachedModel struct {
	rev   uint64
	model *resource.DeviceModel
}

func (m *modelCache) get(ctx context.Context, r store.Reader, key store.Key) (*resource.DeviceModel, error) {
	stored, err := r.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.read[key]; ok && known.rev == stored.Rev {
		return known.model, nil
	}
	model := new(resource.DeviceModel)
	if err := json.Unmarshal(stored.Data, model); err != nil {
		return nil, fmt.Errorf("the stored %s can't be read: %w", key, err)
	}
	if m.read == nil || len(m.read) >= maxCachedModels {
		m.read = make(map[store.Key]cachedModel)
	}
	m.read[key] = cachedModel{stored.Rev, model}
	return model, nil
}

// controllers is StatusWrittenBy of the kinds that controllers reconcile.
const controllers = "controllers (role controller)"

func nodeKind() Kind {
	return Kind{
		Name: resource.KindNode, Plural: "nodes", Singular: "node", Short: []string{"no"},
		StatusWrittenBy: "the node itself (role node) and controllers (role controller)",
		New:             func() any { return new(resource.Node) },
		Validate:        validator(resource.Node.Validate, nil),
		Warnings:        warnNodeSpec,
		ValidateStatus:  func(obj any) error { return obj.(*resource.Node).CheckStatus() },
		Node:            nodeOfNode,
		Columns: []Column{
			{Name: "State", Type: "string", Path: ".status.state", Description: "online or offline, as the hub sees its connection."},
			{Name: "Version", Type: "string", Path: ".status.version", Description: "The version of its core."},
			{Name: "Fleet", Type: "string", Description: "The Fleet that owns it."},
			{Name: "Devices", Type: "integer", Path: ".status.devices", Description: "How many devices are bound to it."},
			{Name: "Ready", Type: "string", Path: ".status.conditions[?(@.type==\"Ready\")].status", Description: "Whether its link to the hub is up.", Wide: true},
			{Name: "Last-Seen", Type: "string", Path: ".status.lastSeen", Description: "When its state last changed.", Wide: true},
			{Name: "Certificate-Ends", Type: "string", Path: ".status.certificateExpires", Description: "When the certificate ends with which it last connected.", Wide: true},
			{Name: "Image", Type: "string", Path: ".spec.os.image", Description: "The operating system that is wanted.", Wide: true},
		},
		Cells: cells(func(n *resource.Node) []any {
			fleet, _ := strings.CutPrefix(n.Metadata.Owner, "Fleet/")
			image := ""
			if n.Spec.OS != nil {
				image = n.Spec.OS.Image
			}
			return []any{orUnknown(n.Status.State), n.Status.Version, fleet, n.Status.Devices, condition(n.Status.Conditions, resource.ConditionReady), n.Status.LastSeen, n.Status.CertificateExpires, image}
		}),
		Fields: map[string]func(any) string{
			"metadata.owner": field(func(n *resource.Node) string { return n.Metadata.Owner }),
		},
	}
}

// warnNodeSpec warns that nothing acts on the spec of a Node yet.
func warnNodeSpec(_ context.Context, _ store.Reader, _, next any) []string {
	if reflect.ValueOf(next.(*resource.Node).Spec).IsZero() {
		return nil
	}
	return []string{"spec: nothing acts on it yet: the hub checks and keeps it, and the node does not change because of it"}
}

// warnMissingNodes warns of names of nodes that don't exist. It is no error: they may come later.
func warnMissingNodes[T any](field string, names func(*T) []string) func(context.Context, store.Reader, any, any) []string {
	return func(ctx context.Context, r store.Reader, old, next any) (warnings []string) {
		var missing []string
		before := make(map[string]bool)
		if prev, ok := old.(*T); ok {
			for _, name := range names(prev) {
				before[name] = true
			}
		}
		for _, name := range names(next.(*T)) {
			if !before[name] && !mayExist(ctx, r, store.Key{Kind: resource.KindNode, Name: name}) {
				missing = append(missing, name)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		return []string{field + ": there is no Node " + joinFirst(missing)}
	}
}

// mayExist reports whether an object exists, or can't be read now.
func mayExist(ctx context.Context, r store.Reader, key store.Key) bool {
	_, err := r.Get(ctx, key)
	return !errors.Is(err, resource.NotFound)
}

func fleetKind() Kind {
	return Kind{
		Name: resource.KindFleet, Plural: "fleets", Singular: "fleet", Short: []string{"fl"},
		NotReconciled: true, StatusWrittenBy: controllers,
		New:      func() any { return new(resource.Fleet) },
		Validate: validator(resource.Fleet.Validate, nil),
		Columns: []Column{
			{Name: "Image", Type: "string", Path: ".spec.template.spec.os.image", Description: "The operating system that its nodes are to have."},
			{Name: "Template", Type: "string", Description: "The TemplateVersion that is being rolled out."},
			{Name: "Overlapping", Type: "string", Path: ".status.conditions[?(@.type==\"OverlappingSelectors\")].status", Description: "Whether other fleets want the same nodes."},
			{Name: "Owner", Type: "string", Description: "Who manages it.", Wide: true},
		},
		Cells: cells(func(f *resource.Fleet) []any {
			image := ""
			if os := f.Spec.Template.Spec.OS; os != nil {
				image = os.Image
			}
			return []any{
				image, f.Metadata.Annotations["fleet-controller/templateVersion"],
				condition(f.Status.Conditions, "OverlappingSelectors"), f.Metadata.Owner,
			}
		}),
	}
}

func templateVersionKind() Kind {
	return Kind{
		Name: resource.KindTemplateVersion, Plural: "templateversions", Singular: "templateversion", Short: []string{"tv"},
		NotReconciled: true, StatusWrittenBy: controllers,
		WrittenBy: "controllers (role controller), from the Fleet's template",
		New:       func() any { return new(resource.TemplateVersion) },
		Validate:  validator(resource.TemplateVersion.Validate, resource.TemplateVersion.CheckUpdate),
		Columns: []Column{
			{Name: "Fleet", Type: "string", Path: ".spec.fleet", Description: "The Fleet whose template it was."},
			{Name: "References", Type: "integer", Description: "How many floating references it has frozen."},
		},
		Cells: cells(func(v *resource.TemplateVersion) []any { return []any{v.Spec.Fleet, len(v.Spec.References)} }),
		Fields: map[string]func(any) string{
			"spec.fleet": field(func(v *resource.TemplateVersion) string { return v.Spec.Fleet }),
		},
	}
}

func repositoryKind() Kind {
	return Kind{
		Name: resource.KindRepository, Plural: "repositories", Singular: "repository", Short: []string{"repo"},
		NotReconciled: true, StatusWrittenBy: controllers,
		New:      func() any { return new(resource.Repository) },
		Validate: validator(resource.Repository.Validate, nil), HasCredentials: true,
		Columns: []Column{
			{Name: "Type", Type: "string", Path: ".spec.type", Description: "git, http or oci."},
			{Name: "URL", Type: "string", Path: ".spec.url", Description: "Where it is."},
			{Name: "Accessible", Type: "string", Path: ".status.conditions[?(@.type==\"Accessible\")].status", Description: "Whether it could be reached."},
		},
		Cells: cells(func(r *resource.Repository) []any {
			kind := r.Spec.Type
			if kind == "" {
				kind = "git"
			}
			return []any{kind, r.Spec.URL, condition(r.Status.Conditions, "Accessible")}
		}),
	}
}

func resourceSyncKind() Kind {
	return Kind{
		Name: resource.KindResourceSync, Plural: "resourcesyncs", Singular: "resourcesync", Short: []string{"rs"},
		NotReconciled: true, StatusWrittenBy: controllers,
		New:      func() any { return new(resource.ResourceSync) },
		Validate: validator(resource.ResourceSync.Validate, nil),
		Columns: []Column{
			{Name: "Repository", Type: "string", Path: ".spec.repository", Description: "The Repository that is applied."},
			{Name: "Revision", Type: "string", Path: ".spec.targetRevision", Description: "The branch, tag or commit that is wanted."},
			{Name: "Synced", Type: "string", Path: ".status.conditions[?(@.type==\"Synced\")].status", Description: "Whether all its manifests are applied."},
			{Name: "Commit", Type: "string", Path: ".status.observedCommit", Description: "The commit that was applied last.", Wide: true},
		},
		Cells: cells(func(r *resource.ResourceSync) []any {
			return []any{r.Spec.Repository, r.Spec.TargetRevision, condition(r.Status.Conditions, "Synced"), r.Status.ObservedCommit}
		}),
	}
}

func upgradeKind() Kind {
	return Kind{
		Name: resource.KindUpgrade, Plural: "upgrades", Singular: "upgrade", Short: []string{"up"},
		NotReconciled: true, StatusWrittenBy: controllers,
		New:      func() any { return new(resource.Upgrade) },
		Validate: validator(resource.Upgrade.Validate, resource.Upgrade.CheckUpdate), OldStatus: true,
		Warnings:       warnMissingNodes("spec.nodeNames", func(u *resource.Upgrade) []string { return u.Spec.NodeNames }),
		ValidateStatus: func(obj any) error { return obj.(*resource.Upgrade).CheckStatus() },
		Columns: []Column{
			{Name: "Version", Type: "string", Path: ".spec.version", Description: "The version that is wanted."},
			{Name: "Nodes", Type: "integer", Description: "How many nodes were asked."},
			{Name: "Done", Type: "integer", Description: "How many of them have the version."},
		},
		Cells: cells(func(u *resource.Upgrade) []any {
			done := 0
			for _, n := range u.Status.Nodes {
				if last := len(n.History) - 1; last >= 0 && n.History[last].OperationStatus == resource.UpgradeSuccess {
					done++
				}
			}
			return []any{u.Spec.Version, len(u.Status.Nodes), done}
		}),
	}
}

func enrollmentKind() Kind {
	return Kind{
		Name: resource.KindEnrollmentRequest, Plural: "enrollmentrequests", Singular: "enrollmentrequest", Short: []string{"er"},
		StatusWrittenBy: controllers,
		New:             func() any { return new(resource.EnrollmentRequest) },
		Validate:        validator(resource.EnrollmentRequest.Validate, resource.EnrollmentRequest.CheckUpdate),
		Columns: []Column{
			{Name: "Node", Type: "string", Path: ".spec.nodeName", Description: "The name that the node asks for."},
			{Name: "Approval", Type: "string", Path: ".spec.approval", Description: "What was decided."},
		},
		Cells: cells(func(e *resource.EnrollmentRequest) []any {
			node, approval := e.Spec.NodeName, e.Spec.Approval
			if node == "" {
				node = e.Metadata.Name
			}
			if approval == "" {
				approval = "Pending"
			}
			return []any{node, approval}
		}),
	}
}

func configurationKind() Kind {
	return Kind{
		Name: resource.KindConfiguration, Plural: "configurations", Singular: "configuration", Short: []string{"akric"}, Namespaced: true,
		NotReconciled: true, StatusWrittenBy: controllers,
		New:      func() any { return new(resource.Configuration) },
		Validate: validator(resource.Configuration.Validate, nil),
		Columns: []Column{
			{Name: "Handler", Type: "string", Path: ".spec.discoveryHandler.name", Description: "The discovery handler that looks for devices."},
			{Name: "Capacity", Type: "integer", Path: ".spec.capacity", Description: "How many nodes may use one device at once."},
			{Name: "Instances", Type: "integer", Path: ".status.instances", Description: "How many devices are found."},
		},
		Cells: cells(func(c *resource.Configuration) []any {
			capacity := 1
			if c.Spec.Capacity != nil {
				capacity = *c.Spec.Capacity
			}
			return []any{c.Spec.DiscoveryHandler.Name, capacity, c.Status.Instances}
		}),
	}
}

func instanceKind() Kind {
	return Kind{
		Name: resource.KindInstance, Plural: "instances", Singular: "instance", Short: []string{"akrii"}, Namespaced: true,
		NotReconciled: true, StatusWrittenBy: controllers,
		Warnings: warnMissingNodes("spec.nodes", func(n *resource.Instance) []string { return n.Spec.Nodes }),
		New:      func() any { return new(resource.Instance) },
		Validate: validator(resource.Instance.Validate, resource.Instance.CheckUpdate),
		Columns: []Column{
			{Name: "Config", Type: "string", Path: ".spec.configurationName", Description: "The Configuration that asked for it."},
			{Name: "Shared", Type: "boolean", Path: ".spec.shared", Description: "Whether several nodes see the same device."},
			{Name: "Nodes", Type: "string", Description: "The nodes that see it."},
		},
		Cells: cells(func(n *resource.Instance) []any {
			return []any{n.Spec.ConfigurationName, n.Spec.Shared, joinFirst(n.Spec.Nodes)}
		}),
		Fields: map[string]func(any) string{
			"spec.configurationName": field(func(n *resource.Instance) string { return n.Spec.ConfigurationName }),
		},
	}
}

func secretKind() Kind {
	return Kind{
		Name: resource.KindSecret, Plural: "secrets", Singular: "secret", Namespaced: true,
		Version: "v1", NoSpec: true, NoStatus: true, Sealed: true,
		New:      func() any { return new(resource.Secret) },
		Validate: validator(resource.Secret.Validate, resource.Secret.CheckUpdate),
		Prepare:  func(_, next any, _ string, _ time.Time) { next.(*resource.Secret).Complete() },
		Columns: []Column{
			{Name: "Type", Type: "string", Description: "For whom the values are."},
			{Name: "Data", Type: "integer", Description: "How many values there are."},
		},
		Cells: cells(func(s *resource.Secret) []any { return []any{s.Type, len(s.Data)} }),
		Fields: map[string]func(any) string{
			"type": field(func(s *resource.Secret) string { return s.Type }),
		},
	}
}

func configMapKind() Kind {
	return Kind{
		Name: resource.KindConfigMap, Plural: "configmaps", Singular: "configmap", Short: []string{"cm"}, Namespaced: true,
		Version: "v1", NoSpec: true, NoStatus: true,
		New:      func() any { return new(resource.ConfigMap) },
		Validate: validator(resource.ConfigMap.Validate, resource.ConfigMap.CheckUpdate),
		Columns: []Column{
			{Name: "Data", Type: "integer", Description: "How many values there are."},
		},
		Cells: cells(func(c *resource.ConfigMap) []any { return []any{len(c.Data) + len(c.BinaryData)} }),
	}
}

// eventKind is the Event of the core group, which kubectl get events and kubectl describe ask for.
func eventKind() Kind {
	return Kind{
		Name: resource.KindEvent, Plural: "events", Singular: "event", Short: []string{"ev"}, Namespaced: true,
		Version: "v1", NoSpec: true, NoStatus: true, NoDefaultColumns: true,
		New:      func() any { return new(resource.Event) },
		Validate: validator(resource.Event.Validate, nil),
		Node:     nodeOfEvent,
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

// eventsEventKind is the Event of the group events.k8s.io: the same objects, in which some fields have other names.
func eventsEventKind() Kind {
	k := eventKind()
	k.Group = "events.k8s.io"
	k.Fields = eventFields("regarding", "reportingController")
	k.FieldNames = map[string]string{
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

// nodeOfDevice is Kind.Node of a Device. One that is not bound to a node belongs to the node "", which only users with
// access to all nodes have.
func nodeOfDevice(_ context.Context, _ store.Reader, obj any) (string, bool) {
	return obj.(*resource.Device).Spec.NodeName, true
}

func nodeOfNode(_ context.Context, _ store.Reader, obj any) (string, bool) {
	return obj.(*resource.Node).Metadata.Name, true
}

// nodeOfEvent is Kind.Node of an Event: the node of the object that it is about.
func nodeOfEvent(ctx context.Context, r store.Reader, obj any) (string, bool) {
	about := obj.(*resource.Event).InvolvedObject
	switch about.Kind {
	case resource.KindNode:
		return about.Name, true
	case resource.KindDevice:
		var d resource.Device
		stored, err := r.Get(ctx, store.Key{Kind: about.Kind, Namespace: about.Namespace, Name: about.Name})
		if err == nil {
			err = json.Unmarshal(stored.Data, &d)
		}
		if err != nil || about.UID != "" && about.UID != d.Metadata.UID { // deleted: nobody knows which node it had
			return "", true
		}
		return d.Spec.NodeName, true
	}
	return "", false
}
