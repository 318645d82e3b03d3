// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Kinds are the kinds that the hub has. Their rules that need nothing but the object are in topics/resource.
func Kinds() []Kind {
	models := new(modelCache)
	kinds := []Kind{
		{
			Name: resource.KindDevice, Namespaced: true, UniqueName: true,
			New: newTyped[resource.Device], Validate: models.validateDevice, Warnings: warnMissingReferences,
			Prepare: func(old, next any, w *WriteOptions, now time.Time) {
				prev, _ := old.(*resource.Device)
				resource.StampDesired(prev, next.(*resource.Device), w.Origin, w.Trace, now)
			},
			PrepareStatus: models.prepareStatus,
			References:    func(obj any) []store.Key { return []store.Key{modelKey(obj.(*resource.Device))} },
		},
		{
			Name: resource.KindDeviceModel, Namespaced: true,
			New: newTyped[resource.DeviceModel], Validate: validateWith(resource.DeviceModel.Validate, nil), Warnings: warnBooleanEnum,
			UsedBy: resource.KindDevice,
		},
		{
			Name: resource.KindNode,
			New:  newTyped[resource.Node], Validate: validateWith(resource.Node.Validate, nil), Warnings: warnNodeReferences,
			ValidateStatus: func(obj any) error { return obj.(*resource.Node).CheckStatus() },
		},
		{
			Name: resource.KindFleet, New: newTyped[resource.Fleet], Validate: validateWith(resource.Fleet.Validate, nil), SetReady: setReady[*resource.Fleet],
			Warnings: func(_ context.Context, _ store.Reader, _, next any) []string {
				return warnModes("spec.template.spec", next.(*resource.Fleet).Spec.Template.Spec)
			},
		},
		{
			Name: resource.KindTemplateVersion, New: newTyped[resource.TemplateVersion],
			Validate: validateWith(resource.TemplateVersion.Validate, resource.TemplateVersion.CheckUpdate), CheckDelete: checkVersionDeletion,
		},
		{Name: resource.KindRepository, New: newTyped[resource.Repository], Validate: validateWith(resource.Repository.Validate, nil)},
		{
			Name: resource.KindResourceSync, New: newTyped[resource.ResourceSync], Validate: validateWith(resource.ResourceSync.Validate, nil),
			SetReady: setReady[*resource.ResourceSync],
		},
		{
			Name: resource.KindUpgrade, New: newTyped[resource.Upgrade],
			Validate: validateUpgrade, OldStatus: true, MaxStatus: 3 << 20, SetReady: setReady[*resource.Upgrade],
			Warnings:       warnMissingNodes("spec.nodeNames", func(u *resource.Upgrade) []string { return u.Spec.NodeNames }),
			ValidateStatus: func(obj any) error { return obj.(*resource.Upgrade).CheckStatus() },
		},
		{Name: resource.KindArtifact, New: newTyped[resource.Artifact], Validate: validateWith(resource.Artifact.Validate, resource.Artifact.CheckUpdate)},
		{
			Name: resource.KindConfiguration, Namespaced: true, UniqueName: true,
			New: newTyped[resource.Configuration], Validate: validateWith(resource.Configuration.Validate, nil),
		},
		{
			Name: resource.KindInstance, Namespaced: true,
			New: newTyped[resource.Instance], Validate: validateWith(resource.Instance.Validate, resource.Instance.CheckUpdate),
			Warnings: warnMissingNodes("spec.nodes", func(n *resource.Instance) []string { return n.Spec.Nodes }),
		},
		{
			Name: resource.KindEnrollmentRequest, New: newTyped[resource.EnrollmentRequest],
			Validate: validateEnrollment,
		},
	}
	for i := range kinds {
		kinds[i].Group, kinds[i].Version = resource.Group, resource.Version
	}
	return append(kinds,
		Kind{
			Name: resource.KindSecret, Namespaced: true, Version: "v1", NoSpec: true, Sealed: true,
			New: newTyped[resource.Secret], Validate: validateWith(resource.Secret.Validate, resource.Secret.CheckUpdate),
			Prepare: func(_, next any, _ *WriteOptions, _ time.Time) { next.(*resource.Secret).Complete() },
		},
		Kind{
			Name: resource.KindConfigMap, Namespaced: true, Version: "v1", NoSpec: true,
			New: newTyped[resource.ConfigMap], Validate: validateWith(resource.ConfigMap.Validate, resource.ConfigMap.CheckUpdate),
		},
		Kind{
			Name: resource.KindEvent, Namespaced: true, Version: "v1", NoSpec: true,
			New: newTyped[resource.Event], Validate: validateWith(resource.Event.Validate, nil),
			Prepare: func(_, next any, _ *WriteOptions, now time.Time) { next.(*resource.Event).Complete(now) },
		},
		Kind{
			Name: resource.KindLease, Namespaced: true, Group: "coordination.k8s.io", Version: "v1",
			New: newTyped[resource.Lease], Validate: validateWith(resource.Lease.Validate, nil),
		},
		Kind{
			Name: resource.KindRule, Namespaced: true, Group: resource.RulesGroup, Version: resource.RulesVersion,
			New: newTyped[resource.Rule], Validate: validateRule, Warnings: warnRuleReferences,
		},
		Kind{
			Name: resource.KindRuleEndpoint, Namespaced: true, Group: resource.RulesGroup, Version: resource.RulesVersion,
			New: newTyped[resource.RuleEndpoint], Validate: validateWith(resource.RuleEndpoint.Validate, nil),
		},
	)
}

func newTyped[T any]() any { return new(T) }

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

// setReady is Kind.SetReady of a kind.
func setReady[T interface{ SetReady(now time.Time) }](obj any, now time.Time) { obj.(T).SetReady(now) }

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

// mostSettingWarnings bounds what is said of one object.
const mostSettingWarnings = 10

// warnSettings names what mappers of its protocols don't take of a Device, or of a model: a Device is compared with the mappers of its node, a model with those of
// any, for its devices may be on each.
func (s *Registry) warnSettings(obj any) (warnings []string) {
	if s.DeviceSettings == nil {
		return nil
	}
	switch o := obj.(type) {
	case *resource.Device:
		warnings = leastWrong(o.Spec.Protocol.Type, s.DeviceSettings(o.Spec.NodeName), func(mapper resource.ProtocolSettings) []string {
			wrong := mapper.CheckDevice("spec.protocol.config", o.Spec.Protocol.Config)
			for i, v := range o.Spec.PropertyVisitors {
				wrong = append(wrong, mapper.CheckVisitor(fmt.Sprintf("spec.propertyVisitors[%d].config", i), v)...)
			}
			return wrong
		})
	case *resource.DeviceModel:
		var list []resource.ProtocolSettings
		if len(o.Spec.PropertyVisitors) > 0 {
			list = s.DeviceSettings("+")
		}
		for i, pv := range o.Spec.PropertyVisitors {
			warnings = append(warnings, leastWrong(pv.Protocol, list, func(mapper resource.ProtocolSettings) []string {
				at := fmt.Sprintf("spec.propertyVisitors[%d].", i)
				wrong := mapper.CheckDevice(at+"config", pv.Config)
				for j, v := range pv.Visitors {
					wrong = append(wrong, mapper.CheckVisitor(fmt.Sprintf("%svisitors[%d].config", at, j), v)...)
				}
				return wrong
			})...)
		}
	}
	return warnings[:min(len(warnings), mostSettingWarnings)]
}

// leastWrong is what the one of the mappers of a protocol finds wrong that takes the most. A mapper that hasn't said which settings it has takes any.
func leastWrong(protocol string, mappers []resource.ProtocolSettings, check func(mapper resource.ProtocolSettings) []string) (least []string) {
	asked := false
	for _, mapper := range mappers {
		if !slices.ContainsFunc(mapper.Protocols, func(name string) bool { return resource.SameProtocol(name, protocol) }) {
			continue
		}
		if wrong := check(mapper); !asked || len(wrong) < len(least) {
			asked, least = true, wrong
		}
	}
	return least
}

// warnModes names permissions that were written in octal, where the number is decimal: 644 is 1204 in octal. Those up to 777 in octal that
// look so are left alone, for they are as good as any: 420 is 0644.
func warnModes(at string, spec resource.NodeSpec) (warnings []string) {
	check := func(at string, files []resource.InlineFile) {
		for i, f := range files {
			if f.Mode == nil || *f.Mode <= 0o777 || *f.Mode > 777 {
				continue
			}
			if meant, err := strconv.ParseInt(strconv.Itoa(*f.Mode), 8, 32); err == nil {
				warnings = append(warnings, fmt.Sprintf("%s.files[%d].mode: %d is %o in octal; the permissions %d are %d, or 0%d in YAML", at, i, *f.Mode, *f.Mode, *f.Mode, meant, *f.Mode))
			}
		}
	}
	for i, item := range spec.Config {
		check(fmt.Sprintf("%s.config[%d]", at, i), item.Files)
	}
	for i, app := range spec.Applications {
		check(fmt.Sprintf("%s.applications[%d]", at, i), app.Files)
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

// warnNodeReferences warns of ConfigMaps, Secrets and Repositories that a spec refers to and that don't exist: the spec is not
// rendered until they do.
func warnNodeReferences(ctx context.Context, r store.Reader, _, next any) (warnings []string) {
	for i, item := range next.(*resource.Node).Spec.Config {
		at := fmt.Sprintf("spec.config[%d]", i)
		var key store.Key
		switch {
		case item.GitRef != nil:
			key = store.Key{Kind: resource.KindRepository, Name: item.GitRef.Repository}
		case item.HTTPRef != nil:
			key = store.Key{Kind: resource.KindRepository, Name: item.HTTPRef.Repository}
		case item.SecretRef != nil:
			key = store.Key{Kind: resource.KindSecret, Namespace: cmp.Or(item.SecretRef.Namespace, resource.DefaultNamespace), Name: item.SecretRef.Name}
		case item.ConfigMapRef != nil:
			key = store.Key{Kind: resource.KindConfigMap, Namespace: cmp.Or(item.ConfigMapRef.Namespace, resource.DefaultNamespace), Name: item.ConfigMapRef.Name}
		default:
			continue
		}
		if !mayExist(ctx, r, key) {
			warnings = append(warnings, at+": there is no "+key.String()+": the node keeps what it was sent before until there is")
		}
	}
	return append(warnings, warnModes("spec", next.(*resource.Node).Spec)...)
}

// validateUpgrade checks an Upgrade, and when it is made that it is for a node that exists: a wrong label would go unnoticed.
func validateUpgrade(ctx context.Context, r store.Reader, old, next any) error {
	u := next.(*resource.Upgrade)
	if err := u.Validate(); err != nil {
		return err
	}
	if prev, ok := old.(*resource.Upgrade); ok {
		return u.CheckUpdate(*prev)
	}
	for _, name := range u.Spec.NodeNames {
		if mayExist(ctx, r, store.Key{Kind: resource.KindNode, Name: name}) {
			return nil
		}
	}
	if len(u.Spec.NodeNames) > 0 {
		return resource.Errorf(resource.Invalid, "spec.nodeNames", "there is no Node %s: at least one has to exist", JoinFirst(u.Spec.NodeNames))
	}
	selector := Selector(u.Spec.LabelSelector)
	for o, err := range store.All(ctx, r, resource.KindNode, store.ListOptions{}) {
		if err != nil {
			return err
		}
		var node struct{ Metadata resource.Meta }
		if json.Unmarshal(o.Data, &node) == nil && selector.Matches(labels.Set(node.Metadata.Labels)) {
			return nil
		}
	}
	return resource.Errorf(resource.Invalid, "spec.labelSelector", "matches no Node: at least one has to")
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
		return []string{field + ": there is no Node " + JoinFirst(missing)}
	}
}

// mayExist reports whether an object exists, or can't be read now.
func mayExist(ctx context.Context, r store.Reader, key store.Key) bool {
	_, err := r.Get(ctx, key)
	return !errors.Is(err, resource.NotFound)
}

// JoinFirst lists the first ten names, for messages and tables.
func JoinFirst(names []string) string {
	const most = 10
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// ClipText is a text of at most so many bytes, for conditions and Events: what is more is left out.
func ClipText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len("…")], "") + "…"
}
