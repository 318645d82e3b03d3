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

// Kind is all that the verbs have to be told of a kind. Functions may be nil.
type Kind struct {
	Name, Plural, Singular string
	Short                  []string
	Namespaced             bool
	// Group and Version are the API group; the core group has no name.
	Group, Version string
	// Flat says that there is no spec: what is wanted stands beside the metadata, as in a Secret.
	Flat bool
	// NoStatus says that nobody reports anything about such an object.
	NoStatus bool
	// Names are fields that have another name in this group than here, of a flat kind that is in two
	// groups. The first of the two has all names as they are.
	Names map[string]string
	// Sealed says that the store has the object encrypted, and that tables and messages never show it.
	Sealed bool
	// Kept says that nothing acts on objects of the kind yet: who writes one is warned.
	Kept bool
	// Made says who alone makes and changes such objects; users read and delete them. Empty: users do.
	Made string
	// Reports says who alone writes the status; empty: who may write the object.
	Reports string
	// Credentials says that objects may hold some, which other groups' forms have beside the spec: like Secrets they
	// are for who has all nodes.
	Credentials bool
	// foreign is set for another group's form of one of our kinds.
	foreign *foreign
	// New makes an empty object: *resource.Device. Its Go type says which fields there are.
	New func() any
	// Reset clears the fields of a decoded object that clients can neither see nor set, and returns their names.
	Reset func(obj any) []string
	// Validate checks an object before it is written; old is nil for a new one. It
	// is not asked when only metadata changed.
	Validate func(ctx context.Context, r store.Reader, old, next any) error
	// StatusRules says that Validate looks at the status of old. Otherwise it sees none; of next it never sees one.
	StatusRules bool
	// CheckStatus checks an object's status before it is written, but for the conditions, which all kinds have alike.
	CheckStatus func(obj any) error
	// Doubts say what may not be meant in an object that is valid: they are warnings. Like
	// Validate it is not asked when only metadata changed.
	Doubts func(ctx context.Context, r store.Reader, old, next any) []string
	// Prepare completes an object that is going to be written.
	Prepare func(old, next any, origin string, now time.Time)
	// StatusAfter is the status that is stored with an object whose spec is written: what is stored now, with what follows
	// from the spec. Without it a status is only written by who reports it.
	StatusAfter func(ctx context.Context, r store.Reader, old, next any, status []byte, now time.Time) ([]byte, error)
	// Node is the node that an object belongs to; ok is false for one that belongs to none. Without it
	// no object of the kind does: all who may read may read them, and only who has all nodes writes them.
	Node func(ctx context.Context, r store.Reader, obj any) (name string, ok bool)
	// UniqueName says that a name is taken in all namespaces at once.
	UniqueName bool
	// Holds names the objects that must not go away before this one.
	Holds func(obj any) []store.Key
	// HeldBy names the objects that hold this one.
	HeldBy func(ctx context.Context, r store.Reader, key store.Key) ([]string, error)

	Columns []Column
	// Bare says that Columns are all there are: no name first, no age last.
	Bare bool
	// Cells are the values of Columns. A time is shown as how long ago it was.
	Cells func(obj any) []any
	// Fields are the field selectors beside metadata.name and metadata.namespace. A text that is selected by
	// stands in the object's JSON as it is: what doesn't have it is passed by without being decoded.
	Fields map[string]func(obj any) string
	// Bulk are the parts of an object that neither Cells nor Fields nor Node look at: they are not decoded for these.
	Bulk bulk
}

// Column is a column of kubectl get.
type Column struct {
	Name, Type, Description string
	Wide                    bool // with -o wide only
	// Path is the JSONPath of its cells, if they are a field: a cluster's tables have these columns only (crds.yaml).
	Path string
}

// apiVersion is what apiVersion says in an object of the kind.
func (k *Kind) apiVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

// root is the path below which the kind is.
func (k *Kind) root() string {
	if k.Group == "" {
		return "/api/" + k.Version
	}
	return "/apis/" + k.apiVersion()
}

// qualified is the kind's name in messages: devices.edgebus.io, secrets.
func (k *Kind) qualified() string {
	if k.Group == "" {
		return k.Plural
	}
	return k.Plural + "." + k.Group
}

// Kinds are the canonical kinds, in the order in which they are listed.
func Kinds() []Kind {
	kinds := []Kind{
		deviceKind(), modelKind(), nodeKind(), fleetKind(), templateVersionKind(), repositoryKind(), resourceSyncKind(),
		upgradeKind(), configurationKind(), instanceKind(), enrollmentKind(),
	}
	for i := range kinds {
		kinds[i].Group, kinds[i].Version = resource.Group, resource.Version
	}
	return append(kinds, secretKind(), configMapKind(), eventKind(), eventForm())
}

// rules is Validate of a kind whose rules look at nothing but the object and the one before.
// follows may be nil.
func rules[T any](valid func(T) error, follows func(next, prev T) error) func(context.Context, store.Reader, any, any) error {
	return func(_ context.Context, _ store.Reader, old, next any) error {
		n := next.(*T)
		if err := valid(*n); err != nil {
			return err
		}
		if prev, ok := old.(*T); ok && follows != nil {
			return follows(*n, *prev)
		}
		return nil
	}
}

// cells is Cells of a kind.
func cells[T any](of func(*T) []any) func(any) []any {
	return func(obj any) []any { return of(obj.(*T)) }
}

// field is a field selector of a kind.
func field[T any](of func(*T) string) func(any) string {
	return func(obj any) string { return of(obj.(*T)) }
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
	known := new(models)
	return Kind{
		Name: resource.KindDevice, Plural: "devices", Singular: "device", Short: []string{"dev"}, Namespaced: true,
		New:        func() any { return new(resource.Device) },
		Reset:      resetDevice,
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

func resetDevice(obj any) []string {
	d := obj.(*resource.Device)
	if d.DesiredMeta == nil {
		return nil
	}
	d.DesiredMeta = nil
	return []string{"desiredMeta"}
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
	d.ResolveBooleans(*model)
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

// maxModels bounds the DeviceModels that are remembered.
const maxModels = 256

// models remembers DeviceModels as they were read last, with their revisions: many Devices have the same model, and
// a write of one would spend most of its time on reading a large model again. What it gives is always what the
// store has. It is shared: nobody may change it.
type models struct {
	mu   sync.Mutex
	read map[store.Key]modelRead
}

type modelRead struct {
	rev   uint64
	model *resource.DeviceModel
}

// get reads a model, or fails as the store does.
func (m *models) get(ctx context.Context, r store.Reader, key store.Key) (*resource.DeviceModel, error) {
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
	if m.read == nil || len(m.read) >= maxModels {
		m.read = make(map[store.Key]modelRead)
	}
	m.read[key] = modelRead{stored.Rev, model}
	return model, nil
}

// reportsControllers are who writes the status of what controllers act on.
const reportsControllers = "controllers (role controller)"

func nodeKind() Kind {
	return Kind{
		Name: resource.KindNode, Plural: "nodes", Singular: "node", Short: []string{"no"},
		Reports:     "the node itself (role node) and controllers (role controller)",
		New:         func() any { return new(resource.Node) },
		Validate:    rules(resource.Node.Validate, nil),
		Doubts:      specIsKept,
		CheckStatus: func(obj any) error { return obj.(*resource.Node).CheckStatus() },
		Node:        ofNode,
		Columns: []Column{
			{Name: "State", Type: "string", Path: ".status.state", Description: "online or offline, as the hub sees its connection."},
			{Name: "Version", Type: "string", Path: ".status.version", Description: "The version of its core."},
			{Name: "Fleet", Type: "string", Description: "The Fleet that owns it."},
			{Name: "Devices", Type: "integer", Path: ".status.devices", Description: "How many devices are bound to it."},
			{Name: "Ready", Type: "string", Path: ".status.conditions[?(@.type==\"Ready\")].status", Description: "Whether its link to the hub is up.", Wide: true},
			{Name: "Last-Seen", Type: "string", Path: ".status.lastSeen", Description: "When its state last changed.", Wide: true},
			{Name: "Image", Type: "string", Path: ".spec.os.image", Description: "The operating system that is wanted.", Wide: true},
		},
		Cells: cells(func(n *resource.Node) []any {
			fleet, _ := strings.CutPrefix(n.Metadata.Owner, "Fleet/")
			image := ""
			if n.Spec.OS != nil {
				image = n.Spec.OS.Image
			}
			return []any{orUnknown(n.Status.State), n.Status.Version, fleet, n.Status.Devices, condition(n.Status.Conditions, resource.ConditionReady), n.Status.LastSeen, image}
		}),
		Fields: map[string]func(any) string{
			"metadata.owner": field(func(n *resource.Node) string { return n.Metadata.Owner }),
		},
	}
}

// specIsKept says of a Node that something is wanted of that nothing does it yet.
func specIsKept(_ context.Context, _ store.Reader, _, next any) []string {
	if reflect.ValueOf(next.(*resource.Node).Spec).IsZero() {
		return nil
	}
	return []string{"spec: nothing acts on it yet: the hub checks and keeps it, and the node does not change because of it"}
}

// doubtNodes doubts that nodes were to be named that aren't there. They may be to come.
func doubtNodes[T any](field string, names func(*T) []string) func(context.Context, store.Reader, any, any) []string {
	return func(ctx context.Context, r store.Reader, old, next any) (doubts []string) {
		var missing []string
		before := make(map[string]bool)
		if prev, ok := old.(*T); ok {
			for _, name := range names(prev) {
				before[name] = true
			}
		}
		for _, name := range names(next.(*T)) {
			if !before[name] && !there(ctx, r, store.Key{Kind: resource.KindNode, Name: name}) {
				missing = append(missing, name)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		return []string{field + ": there is no Node " + someOf(missing)}
	}
}

// there says whether an object exists, or may.
func there(ctx context.Context, r store.Reader, key store.Key) bool {
	_, err := r.Get(ctx, key)
	return !errors.Is(err, resource.NotFound)
}

func fleetKind() Kind {
	return Kind{
		Name: resource.KindFleet, Plural: "fleets", Singular: "fleet", Short: []string{"fl"},
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.Fleet) },
		Validate: rules(resource.Fleet.Validate, nil),
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
		Kept: true, Reports: reportsControllers,
		Made:     "controllers (role controller), from the Fleet's template",
		New:      func() any { return new(resource.TemplateVersion) },
		Validate: rules(resource.TemplateVersion.Validate, resource.TemplateVersion.CheckUpdate),
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
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.Repository) },
		Validate: rules(resource.Repository.Validate, nil), Credentials: true,
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
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.ResourceSync) },
		Validate: rules(resource.ResourceSync.Validate, nil),
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
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.Upgrade) },
		Validate: rules(resource.Upgrade.Validate, resource.Upgrade.CheckUpdate), StatusRules: true,
		Doubts:      doubtNodes("spec.nodeNames", func(u *resource.Upgrade) []string { return u.Spec.NodeNames }),
		CheckStatus: func(obj any) error { return obj.(*resource.Upgrade).CheckStatus() },
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
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.EnrollmentRequest) },
		Validate: rules(resource.EnrollmentRequest.Validate, resource.EnrollmentRequest.CheckUpdate),
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
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.Configuration) },
		Validate: rules(resource.Configuration.Validate, nil),
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
		Kept: true, Reports: reportsControllers,
		Doubts:   doubtNodes("spec.nodes", func(n *resource.Instance) []string { return n.Spec.Nodes }),
		New:      func() any { return new(resource.Instance) },
		Validate: rules(resource.Instance.Validate, resource.Instance.CheckUpdate),
		Columns: []Column{
			{Name: "Config", Type: "string", Path: ".spec.configurationName", Description: "The Configuration that asked for it."},
			{Name: "Shared", Type: "boolean", Path: ".spec.shared", Description: "Whether several nodes see the same device."},
			{Name: "Nodes", Type: "string", Description: "The nodes that see it."},
		},
		Cells: cells(func(n *resource.Instance) []any {
			return []any{n.Spec.ConfigurationName, n.Spec.Shared, someOf(n.Spec.Nodes)}
		}),
		Fields: map[string]func(any) string{
			"spec.configurationName": field(func(n *resource.Instance) string { return n.Spec.ConfigurationName }),
		},
	}
}

func secretKind() Kind {
	return Kind{
		Name: resource.KindSecret, Plural: "secrets", Singular: "secret", Namespaced: true,
		Version: "v1", Flat: true, NoStatus: true, Sealed: true,
		New:      func() any { return new(resource.Secret) },
		Validate: rules(resource.Secret.Validate, resource.Secret.CheckUpdate),
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
		Version: "v1", Flat: true, NoStatus: true,
		New:      func() any { return new(resource.ConfigMap) },
		Validate: rules(resource.ConfigMap.Validate, resource.ConfigMap.CheckUpdate),
		Columns: []Column{
			{Name: "Data", Type: "integer", Description: "How many values there are."},
		},
		Cells: cells(func(c *resource.ConfigMap) []any { return []any{len(c.Data) + len(c.BinaryData)} }),
	}
}

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
	head, err := *o, error(nil)
	head.APIVersion = k.apiVersion()
	if len(o.Spec) > 0 { // else only the name of the object is told
		head.Spec, err = renameFields(o.Spec, k.Names)
	}
	if err != nil {
		return nil, err
	}
	return head.encode()
}

// canonical gives the fields that a client sent their canonical names.
func (k *Kind) canonical(raw []byte) ([]byte, error) {
	if len(k.Names) == 0 {
		return raw, nil
	}
	names := make(map[string]string, 2*len(k.Names))
	for canonical, name := range k.Names {
		names[name] = canonical
		names[canonical] = "" // has no meaning in this group
	}
	out, err := renameFields(raw, names)
	if err != nil {
		return nil, badRequest("", "the body must be an object")
	}
	return out, nil
}

// renameFields renames fields of a JSON object; a field whose new name is empty is removed.
func renameFields(raw []byte, names map[string]string) ([]byte, error) {
	var fields, renamed map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	renamed = make(map[string]json.RawMessage, len(fields))
	for name, value := range fields {
		if to, ok := names[name]; ok {
			name = to
		}
		if name != "" {
			renamed[name] = value
		}
	}
	return json.Marshal(renamed)
}
