package api

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Namespaces are not objects here: a namespace is there as long as something is in it, and the default one always. They can
// be listed, for clients that ask which there are.
var namespaceKind = Kind{Name: "Namespace", Plural: "namespaces", Singular: "namespace", Short: []string{"ns"}, Version: "v1", NoStatus: true}

var namespaceVerbs = []string{"get", "list"}

// categories are the names under which clients ask for several kinds at once. Repositories, which hold credentials, are left
// out, as Secrets are: who may not read them can get all.
func (k *Kind) categories() []string {
	if k.Group == resource.Group && k.foreign == nil && k.Name != "Repository" {
		return []string{"all"}
	}
	return nil
}

// namespaces are those in which there is something that the user sees, in order.
func (s *server) namespaces(ctx context.Context) ([]string, error) {
	a, names := accessIn(ctx), map[string]bool{resource.DefaultNamespace: true}
	asked := map[string]bool{}
	for i := range s.Kinds {
		k := &s.Kinds[i]
		if !k.Namespaced || asked[k.record()] || !a.may("list", k) {
			continue
		}
		asked[k.record()] = true
		if err := s.addNamespaces(ctx, a, k, names); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// addNamespaces looks in each namespace for one object that the user sees, and goes on with the next.
func (s *server) addNamespaces(ctx context.Context, a access, k *Kind, names map[string]bool) error {
	const pastAll = "\U0010ffff" // after every name
	var opts store.ListOptions
	for {
		opts.Limit = 1
		if !a.all {
			opts.Limit = 100
		}
		page, err := s.Reader.List(ctx, k.record(), opts)
		if err != nil || len(page.Items) == 0 {
			return err
		}
		opts.Rev, opts.After = page.Rev, page.Items[len(page.Items)-1].Key
		for _, o := range page.Items {
			if names[o.Namespace] || s.seesStored(ctx, a, k, o) {
				names[o.Namespace] = true
				opts.After = store.Key{Kind: o.Kind, Namespace: o.Namespace, Name: pastAll}
				break
			}
		}
	}
}

// namespace is one as its clients see it.
func namespace(name string) dict {
	return dict{"apiVersion": "v1", "kind": "Namespace", "metadata": dict{"name": name}, "status": dict{"phase": "Active"}}
}

// showNamespaces serves /api/v1/namespaces[/{name}].
func (s *server) showNamespaces(w http.ResponseWriter, r *http.Request) error {
	r.Form = r.URL.Query()
	f, err := accepts(r)
	if err != nil {
		return err
	}
	if isTrue(r.FormValue("watch")) || r.FormValue("labelSelector")+r.FormValue("fieldSelector") != "" {
		return refuse(http.StatusMethodNotAllowed, "MethodNotAllowed", "namespaces can be listed, all of them, and read by name; they are not objects that can be watched or selected")
	}
	names, err := s.namespaces(r.Context())
	if err != nil {
		return err
	}
	one := r.PathValue("name")
	if one != "" {
		if !slices.Contains(names, one) {
			return refuse(http.StatusNotFound, "NotFound", "namespaces %q not found: nothing is in it", one)
		}
		names = []string{one}
	}
	items := []any{}
	for _, name := range names {
		items = append(items, namespace(name))
	}
	meta := dict{"resourceVersion": ""}
	var answer any = dict{"apiVersion": "v1", "kind": "NamespaceList", "metadata": meta, "items": items}
	switch {
	case f.table:
		rows := []any{}
		for i, name := range names {
			object := dict{"kind": partial, "apiVersion": "meta.k8s.io/" + f.version, "metadata": dict{"name": name}}
			if f.include == "Object" {
				object = items[i].(dict)
			}
			rows = append(rows, dict{"cells": []any{name, "Active", s.age((*time.Time)(nil))}, "object": object})
		}
		answer = dict{"kind": "Table", "apiVersion": "meta.k8s.io/" + f.version, "metadata": meta, "rows": rows, "columnDefinitions": []tabCol{
			{Name: "Name", Type: "string", Format: "name", Description: "Name of the namespace."},
			{Name: "Status", Type: "string", Description: "Active: something is in it, or it is the default one."},
			{Name: "Age", Type: "string", Description: "Not known."},
		}}
	case one != "":
		answer = items[0]
	}
	if f.yaml {
		text, err := json.Marshal(answer)
		if err == nil {
			text, err = yaml.JSONToYAML(text)
		}
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(text)
		return nil
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}
