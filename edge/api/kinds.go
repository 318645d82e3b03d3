// SPDX-License-Identifier: Apache-2.0

package api

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/topics/dialect"
	"github.com/edgebus/edgebus/topics/resource"
)

// kind is a kind as it is served in one group: in the canonical form, or in a dialect's.
type kind struct {
	httpserver.Kind
	of   string        // the canonical kind
	form *dialect.Kind // nil: the canonical form
}

// root is the path of the objects, or of those of a namespace.
func (k *kind) root() string {
	root := "/apis/" + k.Group + "/" + k.Version + "/"
	if k.Namespaced {
		root += "namespaces/{namespace}/"
	}
	return root
}

// kinds are all that is served, the canonical ones first: if kinds have the same plural, kubectl takes the first.
func kinds() (list []kind) {
	verbs := []string{"get", "list", "watch"}
	for _, k := range []httpserver.Kind{
		{Name: resource.KindDevice, Plural: "devices", Singular: "device", Short: []string{"dev"}, Namespaced: true},
		{Name: resource.KindDeviceModel, Plural: "devicemodels", Singular: "devicemodel", Short: []string{"dm"}, Namespaced: true},
		{Name: resource.KindNode, Plural: "nodes", Singular: "node", Short: []string{"no"}},
	} {
		k.Group, k.Version, k.Verbs = resource.Group, resource.Version, verbs
		list = append(list, kind{Kind: k, of: k.Name})
	}
	for _, d := range dialect.AllKinds() {
		if d.Canonical == resource.KindDevice || d.Canonical == resource.KindDeviceModel {
			k := httpserver.Kind{Group: d.Group, Version: d.Version, Name: d.Name, Plural: d.Plural, Singular: d.Singular, Namespaced: true, Verbs: verbs}
			list = append(list, kind{Kind: k, of: d.Canonical, form: &d})
		}
	}
	return list
}

// object is an object as the core has it.
type object struct {
	meta  resource.Meta
	value any // resource.Device, DeviceModel or Node
}

// query is what a client wants of a kind, and how.
type query struct {
	*kind
	namespace, name string // empty: all
	labels          []labelTerm
	reads           func(device string) bool // nil: all of them
	table           bool                     // kubectl's form of printing
	includeObject   bool                     // a table's rows have whole objects
	one             bool                     // an object, not a list
}

// labelTerm is one term of a label selector.
type labelTerm struct {
	key, value      string
	exists, negated bool
}

func (s *server) query(r *http.Request, k *kind) (q query, err error) {
	q = query{kind: k, namespace: r.PathValue("namespace"), name: r.PathValue("name"), one: r.PathValue("name") != ""}
	if id, ok := r.Context().Value(identityKey{}).(broker.Identity); ok && s.MayRead != nil && k.of == resource.KindDevice {
		q.reads = s.MayRead(id)
	}
	for item := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		q.table = q.table || strings.Contains(item, "as=Table") && strings.Contains(item, "v=v1;")
	}
	v := r.URL.Query()
	q.includeObject = v.Get("includeObject") == "Object"
	for text := range strings.SplitSeq(v.Get("fieldSelector"), ",") {
		name, value, ok := strings.Cut(text, "=")
		value = strings.TrimPrefix(value, "=")
		switch {
		case text == "":
		case ok && name == "metadata.name" && (q.name == "" || q.name == value):
			q.name = value
		case ok && name == "metadata.namespace" && (q.namespace == "" || q.namespace == value):
			q.namespace = value
		default:
			return q, resource.Errorf(resource.Invalid, "fieldSelector", "%.80q: only metadata.name= and metadata.namespace= are known here", text)
		}
	}
	for text := range strings.SplitSeq(v.Get("labelSelector"), ",") {
		if text == "" {
			continue
		}
		if strings.ContainsAny(text, " ()<>") {
			return q, resource.Errorf(resource.Invalid, "labelSelector", "%.80q: only key, !key, key=value and key!=value are known here", text)
		}
		t := labelTerm{}
		if t.key, t.value, t.exists = strings.Cut(text, "="); !t.exists {
			t.key, t.negated = strings.CutPrefix(text, "!")
		} else {
			t.value = strings.TrimPrefix(t.value, "=")
			t.key, t.negated = strings.CutSuffix(t.key, "!")
		}
		t.exists = !t.exists // a term without a value asks whether there is one
		q.labels = append(q.labels, t)
	}
	return q, nil
}

// matches reports whether an object is one of those that are asked for.
func (q query) matches(m resource.Meta) bool {
	if !q.named(m.Name, m.Namespace) {
		return false
	}
	if q.reads != nil && !q.reads(m.Name) {
		return false
	}
	return !slices.ContainsFunc(q.labels, func(t labelTerm) bool {
		value, ok := m.Labels[t.key]
		return t.negated == (ok && (t.exists || value == t.value))
	})
}

// named reports whether an object of that name and namespace is asked for.
func (q query) named(name, namespace string) bool {
	if namespace == "" && q.Namespaced {
		namespace = resource.DefaultNamespace
	}
	return (q.name == "" || q.name == name) && (q.namespace == "" || q.namespace == namespace)
}

// formKey is the form's part of a cache key.
func (q query) formKey() string {
	return fmt.Sprintf("%s/%s/%t/%t/", q.Version, q.Plural, q.table, q.includeObject)
}

// render is an object as it is sent: in the kind's form, or as the row of a table.
func (q query) render(o object) ([]byte, error) {
	raw, err := json.Marshal(o.value) // plain structs, and values that came as JSON
	if err == nil && q.form != nil {
		raw, err = q.form.Show(raw)
	}
	if err != nil || !q.table {
		return raw, err
	}
	var shown any = json.RawMessage(raw)
	if !q.includeObject {
		shown = map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o.meta}
	}
	values := cells(o.value)
	for i, value := range values {
		if value == "" {
			values[i] = httpserver.NoValue
		}
	}
	return json.Marshal(map[string]any{"cells": values, "object": shown})
}

// frame is what stands before and after the objects of an answer.
func (q query) frame(rev string) (before, after string) {
	switch {
	case q.table:
		columns, _ := json.Marshal(columns[q.of]) // texts
		return fmt.Sprintf(`{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":%q},"columnDefinitions":%s,"rows":[`, rev, columns), "]}"
	case q.one:
		return "", ""
	}
	return fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"%sList","metadata":{"resourceVersion":%q},"items":[`, q.Group, q.Version, q.Name, rev), "]}"
}

// event is an object as an event of a watch has it.
func (q query) event(rendered []byte) []byte {
	if !q.table {
		return rendered
	}
	before, after := q.frame("")
	return slices.Concat([]byte(before), rendered, []byte(after))
}

type column struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format"`
	Description string `json:"description"`
	Priority    int    `json:"priority"` // above 0: with -o wide only
}

var nameColumn = column{"Name", "string", "name", "The object's name.", 0}

// columns are kubectl's, for each canonical kind. They are those of the hub that a node can fill.
var columns = map[string][]column{
	resource.KindDevice: {
		nameColumn,
		{"Model", "string", "", "The DeviceModel that describes it.", 0},
		{"State", "string", "", "online, offline or unknown, as its mapper says.", 0},
		{"In-Sync", "string", "", "Whether every property is as it is wanted.", 0},
		{"Protocol", "string", "", "The protocol that reaches it.", 1},
	},
	resource.KindDeviceModel: {nameColumn, {"Properties", "integer", "", "How many properties it has.", 0}},
	resource.KindNode: {
		nameColumn,
		{"State", "string", "", "Whether the hub is connected.", 0},
		{"Version", "string", "", "The version of the core.", 0},
		{"Devices", "integer", "", "How many devices are bound to it.", 0},
		{"Ready", "string", "", "Whether its link to the hub is up.", 1},
	},
}

func cells(v any) []any {
	switch v := v.(type) {
	case resource.Device:
		return []any{v.Metadata.Name, v.Spec.DeviceModelRef.Name, v.Status.State, conditionStatus(v.Status.Conditions, "InSync"), v.Spec.Protocol.Type}
	case resource.DeviceModel:
		return []any{v.Metadata.Name, len(v.Spec.Properties)}
	case resource.Node:
		return []any{v.Metadata.Name, v.Status.State, v.Status.Version, v.Status.Devices, conditionStatus(v.Status.Conditions, resource.ConditionReady)}
	}
	return nil
}

func conditionStatus(list []resource.Condition, kind string) string {
	for _, c := range list {
		if c.Type == kind {
			return c.Status
		}
	}
	return "Unknown"
}

// smallKind are the present objects of a kind with few objects: models, or the node. Their changes are not counted, so their
// revisions, and that of the list, are digests.
func (s *server) smallKind(k *kind) (list []object, rev string) {
	if k.of == resource.KindNode {
		n := s.Node()
		n.TypeMeta = resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindNode}
		n.Metadata.ResourceVersion = digestOf(n)
		list = append(list, object{n.Metadata, n})
	} else {
		for _, m := range s.Models() {
			m.TypeMeta = resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindDeviceModel}
			m.Metadata.ResourceVersion = digestOf(m)
			list = append(list, object{m.Metadata, m})
		}
	}
	var all strings.Builder
	for _, o := range list {
		all.WriteString(o.meta.ResourceVersion + " ")
	}
	return list, digestOf(all.String())
}

func digestOf(v any) string {
	raw, _ := json.Marshal(v) // plain structs
	h := fnv.New64a()
	_, _ = h.Write(raw) // a hash never fails
	return strconv.FormatUint(h.Sum64()|1, 10)
}

type jsonObject = map[string]any

// schemaText are those that the hub has of the kinds that are served here, as a test of the hub's API writes them: make golden.
//
//go:embed schemas.json
var schemaText []byte

// discover serves what clients read to find out what there is: the lists of groups and kinds, and their schemas.
func (s *server) discover(mux *http.ServeMux) {
	d := httpserver.Discovery{OpenAPI: s.openapi}
	for _, k := range s.kinds {
		if k.Group == resource.Group || !s.OwnOnly {
			d.Kinds = append(d.Kinds, k.Kind)
		}
	}
	for path, answer := range d.Handlers() {
		mux.HandleFunc("GET "+path, answer)
	}
}

// openapi is the document of a group's version, in OpenAPI 3, as far as kubectl explain reads it.
func (s *server) openapi(group, version string) any {
	all := map[string]json.RawMessage{}
	_ = json.Unmarshal(schemaText, &all) // a test has read it
	named, paths := map[string]json.RawMessage{}, jsonObject{}
	for name, schema := range all {
		if head, _, ok := strings.Cut(name, "/"); !ok || head == group && strings.HasPrefix(name, head+"/"+version+"/") {
			named[name[strings.LastIndex(name, "/")+1:]] = schema
		}
	}
	for _, k := range s.kinds {
		if k.Group != group || k.Version != version {
			continue
		}
		at := k.root() + k.Plural
		for path, action := range map[string]string{at: "list", at + "/{name}": "get"} {
			paths[path] = jsonObject{"get": jsonObject{
				"x-kubernetes-action": action, "x-kubernetes-group-version-kind": k.GVK(), "responses": jsonObject{"200": jsonObject{"description": "OK"}},
			}}
		}
	}
	return jsonObject{"openapi": "3.0.0", "info": jsonObject{"title": "Edgebus", "version": version}, "paths": paths, "components": jsonObject{"schemas": named}}
}
