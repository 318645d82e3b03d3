// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// namespaceKind is for discovery. Namespaces are no objects: a namespace exists as long as an object is in it, and the
// default namespace always (ADR 0046).
var namespaceKind = Kind{
	Kind: objects.Kind{Name: "Namespace", Version: "v1"}, Plural: "namespaces", Singular: "namespace", Short: []string{"ns"}, NoStatus: true,
}

// namespaces are those with an object that the user may see, and the default one, in order.
func (l *lister) namespaces(ctx context.Context) ([]string, error) {
	a, names := accessIn(ctx), map[string]bool{resource.DefaultNamespace: true}
	for i := range l.kinds {
		k := &l.kinds[i]
		if !k.Namespaced || k.dialect != nil || len(k.FieldNames) > 0 || !a.may("list", k) {
			continue
		}
		if err := l.addNamespaces(ctx, a, k, names); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// addNamespaces looks for one visible object in each namespace, and continues with the next namespace.
func (l *lister) addNamespaces(ctx context.Context, a access, k *Kind, names map[string]bool) error {
	const lastName = "\U0010ffff" // is after every name
	opts := store.ListOptions{Limit: 1, DataOnly: true}
	if !a.all {
		opts.Limit = 100
	}
	for {
		page, err := l.reader.List(ctx, k.Name, opts)
		if err != nil || len(page.Items) == 0 {
			return err
		}
		opts.Rev, opts.After = page.Rev, page.Items[len(page.Items)-1].Key
		for _, o := range page.Items {
			if names[o.Namespace] || l.authorizer.hasStored(ctx, a, k, o) {
				names[o.Namespace] = true
				opts.After = store.Key{Kind: o.Kind, Namespace: o.Namespace, Name: lastName}
				break
			}
		}
	}
}

// serveNamespaces serves /api/v1/namespaces[/{name}]. What is applied is answered as if it were there, so that a directory of manifests
// that has its Namespace can be applied; every other write is refused.
func (l *lister) serveNamespaces(w http.ResponseWriter, r *http.Request) error {
	r.Form = r.URL.Query()
	const what = "a namespace is no object here: every name is one, and it is listed as long as an object is in it"
	applies := r.Method == http.MethodPatch && (mediaType(r) == applyPatch || r.FormValue("fieldManager") == clientSideManager)
	switch {
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
	case applies && r.PathValue("name") != "":
		addWarning(w, "%s; nothing of this Namespace is stored", what)
	default:
		return methodNotAllowed(allowsReadOnly,
			"%s. It needs no making, and has no labels; it goes when its objects are deleted", what)
	}
	return l.showNamespaces(w, r)
}

func (l *lister) showNamespaces(w http.ResponseWriter, r *http.Request) error {
	f, err := negotiateFormat(r)
	if err != nil {
		return err
	}
	if httpserver.IsQueryTrue(r.Form, "watch") || r.FormValue("labelSelector")+r.FormValue("fieldSelector") != "" {
		return methodNotAllowed(allowsReadOnly, "namespaces can be listed, all of them, and read by name; they are not objects that can be watched or selected")
	}
	var names []string
	one := r.PathValue("name")
	if one == "" {
		if names, err = l.namespaces(r.Context()); err != nil {
			return err
		}
	} else {
		if err := (resource.Meta{Name: one, Namespace: one}).Validate(); err != nil {
			return statusErrorf(http.StatusNotFound, "NotFound", "namespaces %q not found: %v", one, err)
		}
		names = []string{one}
	}
	items, rows := []any{}, []any{}
	for _, name := range names {
		item := jsonObject{"apiVersion": "v1", "kind": "Namespace", "metadata": jsonObject{"name": name}, "status": jsonObject{"phase": "Active"}}
		var object any = jsonObject{"kind": partialKind, "apiVersion": "meta.k8s.io/" + f.version, "metadata": jsonObject{"name": name}}
		if f.include == "Object" {
			object = item
		}
		items = append(items, item)
		rows = append(rows, jsonObject{"cells": []any{name, "Active", l.encoder.age((*time.Time)(nil))}, "object": object})
	}
	var answer any = jsonObject{"apiVersion": "v1", "kind": "NamespaceList", "metadata": jsonObject{"resourceVersion": ""}, "items": items}
	switch {
	case f.table:
		answer = jsonObject{"kind": "Table", "apiVersion": "meta.k8s.io/" + f.version, "metadata": jsonObject{"resourceVersion": ""}, "rows": rows, "columnDefinitions": []tableColumn{
			{Name: "Name", Type: "string", Format: "name", Description: "Name of the namespace."},
			{Name: "Status", Type: "string", Description: "Active: something is in it, or it is the default one."},
			{Name: "Age", Type: "string", Description: "Not known."},
		}}
	case one != "":
		answer = items[0]
	}
	raw, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	return sendFormatted(w, f, http.StatusOK, raw)
}
