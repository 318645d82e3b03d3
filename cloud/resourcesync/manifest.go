// SPDX-License-Identifier: Apache-2.0

package resourcesync

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/dialect"
	"github.com/edgebus/edgebus/topics/resource"
)

// Kinds are the kinds of which manifests are applied. Whoever may write to the repository may write them, so those that hold
// credentials or lead to other repositories are not among them, nor those that only the hub makes.
var Kinds = []string{
	resource.KindDeviceModel, resource.KindConfigMap, resource.KindConfiguration, resource.KindNode, resource.KindDevice, resource.KindFleet, resource.KindUpgrade,
}

// The bounds of manifests.
const (
	maxManifestBytes = 1 << 20 // bytes of one
	maxManifests     = 1000
)

// manifest is an object that a repository describes.
type manifest struct {
	key  store.Key
	file string // where it stands, for messages
	raw  []byte // JSON
	form *dialect.Kind
	refs []objects.Reference
}

// parseManifests reads the manifests in a file.
func parseManifests(registry *objects.Registry, name string, content []byte) (list []manifest, err error) {
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		at := fmt.Sprintf("%s, document %d", name, n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if len(doc) > maxManifestBytes {
			return nil, fmt.Errorf("%s: it has %d bytes; a manifest has at most %d", at, len(doc), maxManifestBytes)
		}
		raw, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if string(raw) == "null" {
			continue
		}
		bodies, isList, err := resource.ListItems(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		for i, body := range bodies {
			place := at
			if isList {
				place = fmt.Sprintf("%s, items[%d]", at, i)
			}
			m, err := newManifest(registry, body)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", place, err)
			}
			m.file = place
			list = append(list, m)
		}
	}
}

// newManifest finds out which object a manifest describes.
func newManifest(registry *objects.Registry, raw []byte) (m manifest, err error) {
	var head struct {
		resource.TypeMeta
		Metadata resource.Meta `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return m, dialect.TypeError(reflect.TypeOf(head), raw, err)
	}
	m.raw, m.key = raw, store.Key{Kind: head.Kind, Namespace: head.Metadata.Namespace, Name: head.Metadata.Name}
	for _, form := range dialect.AllKinds() {
		if form.APIVersion() == head.APIVersion && form.Name == head.Kind && !form.ReadOnly {
			m.form, m.key.Kind = &form, form.Canonical
			break
		}
	}
	kind := registry.Kind(m.key.Kind)
	switch {
	case kind == nil || m.form == nil && kind.APIVersion() != head.APIVersion:
		return m, fmt.Errorf("there is no kind %s of %s", head.Kind, head.APIVersion)
	case !slices.Contains(Kinds, kind.Name):
		return m, fmt.Errorf("a %s is not applied from a repository; these are: %s", head.Kind, strings.Join(Kinds, ", "))
	case head.Metadata.Name == "":
		return m, errors.New("metadata.name is required")
	case !kind.Namespaced:
		m.key.Namespace = ""
	case m.key.Namespace == "":
		m.key.Namespace = resource.DefaultNamespace
	}
	_, v, err := m.object(registry, nil)
	m.refs = objects.References(v)
	return m, err
}

// object is the object that the manifest describes, in its canonical form, and v the same in its Go type; old is the stored one, or nil.
func (m manifest) object(registry *objects.Registry, old *objects.Object) (o *objects.Object, v any, err error) {
	raw := m.raw
	if m.form != nil {
		if unknown := m.form.Unknown(raw); len(unknown) > 0 {
			return nil, nil, fmt.Errorf("unknown field %q", unknown[0])
		}
		var before []byte
		if old != nil {
			if before, err = old.ForClient(); err != nil {
				return nil, nil, err
			}
		}
		if raw, err = m.form.Read(raw, before, false); err != nil {
			return nil, nil, err
		}
	}
	kind := registry.Kind(m.key.Kind)
	v = reflect.New(reflect.TypeOf(kind.New()).Elem()).Interface()
	strict, err := kjson.UnmarshalStrict(raw, v, kjson.DisallowUnknownFields)
	switch {
	case err != nil:
		return nil, nil, dialect.TypeError(reflect.TypeOf(v), raw, err)
	case len(strict) > 0:
		return nil, nil, strict[0]
	}
	if o, err = kind.Untyped(v); err != nil {
		return nil, nil, err
	}
	o.APIVersion, o.Kind = kind.APIVersion(), kind.Name
	o.Status, o.DesiredMeta = nil, nil
	o.Metadata.Namespace = m.key.Namespace
	return o, v, nil
}

// syncPlan is what is to be done to have what a repository describes.
type syncPlan struct {
	apply   []manifest
	foreign []manifest  // there is an object of that name that is not the ResourceSync's
	prune   []store.Key // objects that are, and that are not described any more
}

// planSync decides by the owners of the objects that there are: whose are those that are described, and which does the ResourceSync
// own. An object is applied if there is none, or if it is the ResourceSync's own.
func planSync(wanted []manifest, owner string, owners map[store.Key]string) (p syncPlan) {
	described := make(map[store.Key]bool)
	for _, m := range wanted {
		described[m.key] = true
		if of, exists := owners[m.key]; exists && of != owner {
			p.foreign = append(p.foreign, m)
		} else {
			p.apply = append(p.apply, m)
		}
	}
	for key, of := range owners {
		if of == owner && !described[key] {
			p.prune = append(p.prune, key)
		}
	}
	order := func(key store.Key) int { return slices.Index(Kinds, key.Kind) }
	slices.SortStableFunc(p.apply, func(a, b manifest) int { return order(a.key) - order(b.key) }) // a model before its devices
	slices.SortFunc(p.prune, func(a, b store.Key) int {
		if d := order(b) - order(a); d != 0 {
			return d
		}
		return a.Compare(b)
	})
	return p
}
