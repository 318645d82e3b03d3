// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"encoding/json"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
)

// Kind is a kind of objects that an API serves, as discovery describes it to kubectl.
type Kind struct {
	Group, Version         string // the core group has no name
	Name, Plural, Singular string
	Short, Categories      []string
	Namespaced             bool
	Verbs                  []string
	StatusVerbs            []string // of the subresource status; none: there is no such subresource
}

// GVK is the kind's group, version and name, as Kubernetes' documents refer to it.
func (k Kind) GVK() map[string]any {
	return map[string]any{"group": k.Group, "version": k.Version, "kind": k.Name}
}

// Discovery answers what kubectl asks to find out what an API has: groups, versions and kinds, in the old form and the
// aggregated one, and where their OpenAPI documents are.
type Discovery struct {
	Kinds   []Kind // for a plural that several have, kubectl takes the first
	Version string // of the program; may be empty
	// OpenAPI makes the document of a group and version.
	OpenAPI func(group, version string) any
}

// Handlers are the answers, by path.
func (d Discovery) Handlers() map[string]http.HandlerFunc {
	all, groups, paths, items := map[string]http.HandlerFunc{}, []any{}, jsonObject{}, []any{}
	core := []any{}
	all["/api/v1"] = documentHandler(apiResources("v1", nil), nil) // kubectl asks for it, also where there is nothing
	for _, g := range d.groups() {
		var versions, aggregated []any
		for _, v := range d.versions(g) {
			path, groupVersion := "apis/"+g+"/"+v, g+"/"+v
			if g == "" {
				path, groupVersion = "api/"+v, v
			}
			kinds := d.of(g, v)
			all["/"+path] = documentHandler(apiResources(groupVersion, kinds), nil)
			all["/openapi/v3/"+path] = func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, "application/json", d.OpenAPI(g, v)) }
			paths[path] = jsonObject{"serverRelativeURL": "/openapi/v3/" + path}
			versions = append(versions, jsonObject{"groupVersion": groupVersion, "version": v})
			aggregated = append(aggregated, jsonObject{"version": v, "resources": discoveryResources(kinds), "freshness": "Current"})
		}
		item := jsonObject{"metadata": jsonObject{"name": g, "creationTimestamp": nil}, "versions": aggregated}
		if g == "" {
			core = append(core, item)
			continue
		}
		group := jsonObject{"kind": "APIGroup", "apiVersion": "v1", "name": g, "versions": versions, "preferredVersion": versions[0]}
		groups, items = append(groups, group), append(items, item)
		all["/apis/"+g] = documentHandler(group, nil)
	}
	all["/api"] = documentHandler(jsonObject{"kind": "APIVersions", "versions": []string{"v1"}, "serverAddressByClientCIDRs": []any{}}, discoveryList(core))
	all["/apis"] = documentHandler(jsonObject{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}, discoveryList(items))
	all["/openapi/v3"] = documentHandler(jsonObject{"paths": paths}, nil)
	all["/version"] = documentHandler(d.version(), nil)
	for path, document := range maps.Clone(all) {
		all[path+"/{$}"] = document // as Kubernetes has them
	}
	return all
}

type jsonObject = map[string]any

func (d Discovery) groups() (out []string) {
	for _, k := range d.Kinds {
		if !slices.Contains(out, k.Group) {
			out = append(out, k.Group)
		}
	}
	return out
}

// versions are those of a group, the preferred one first.
func (d Discovery) versions(group string) (out []string) {
	for _, k := range d.Kinds {
		if k.Group == group && !slices.Contains(out, k.Version) {
			out = append(out, k.Version)
		}
	}
	return out
}

func (d Discovery) of(group, version string) (out []Kind) {
	for _, k := range d.Kinds {
		if k.Group == group && k.Version == version {
			out = append(out, k)
		}
	}
	return out
}

// version names the version of Kubernetes that kubectl compares itself with.
func (d Discovery) version() any {
	git := "v1.32.0+edgebus"
	if d.Version != "" {
		git += "-" + strings.TrimPrefix(d.Version, "v")
	}
	return jsonObject{
		"major": "1", "minor": "32", "gitVersion": git,
		"gitCommit": "", "gitTreeState": "", "buildDate": "", // generated clients require them
		"goVersion": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
	}
}

func apiResources(groupVersion string, kinds []Kind) any {
	list := []any{}
	for _, k := range kinds {
		list = append(list, jsonObject{
			"name": k.Plural, "singularName": k.Singular, "namespaced": k.Namespaced, "kind": k.Name,
			"verbs": k.Verbs, "shortNames": k.Short, "categories": k.Categories,
		})
		if k.StatusVerbs != nil {
			list = append(list, jsonObject{"name": k.Plural + "/status", "singularName": "", "namespaced": k.Namespaced, "kind": k.Name, "verbs": k.StatusVerbs})
		}
	}
	return jsonObject{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": groupVersion, "resources": list}
}

func discoveryList(items []any) any {
	return jsonObject{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": jsonObject{}, "items": items}
}

// discoveryResources are kinds in the aggregated form.
func discoveryResources(kinds []Kind) []any {
	list := []any{}
	for _, k := range kinds {
		scope := "Cluster"
		if k.Namespaced {
			scope = "Namespaced"
		}
		r := jsonObject{
			"resource": k.Plural, "responseKind": k.GVK(), "scope": scope, "singularResource": k.Singular,
			"verbs": k.Verbs, "shortNames": k.Short, "categories": k.Categories,
		}
		if k.StatusVerbs != nil {
			r["subresources"] = []any{jsonObject{"subresource": "status", "responseKind": k.GVK(), "verbs": k.StatusVerbs}}
		}
		list = append(list, r)
	}
	return list
}

// documentHandler sends a document; in the aggregated form, where there is one and the client asks for it.
func documentHandler(plain, aggregated any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept")
		if media := aggregatedType(r); media != "" && aggregated != nil {
			writeJSON(w, media, aggregated)
			return
		}
		writeJSON(w, "application/json", plain)
	}
}

func writeJSON(w http.ResponseWriter, media string, v any) {
	w.Header().Set("Content-Type", media)
	_ = json.NewEncoder(w).Encode(v) // or the client is gone
}

// aggregatedType is the media type of the aggregated form, if the client asks for it.
func aggregatedType(r *http.Request) string {
	for item := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		item = strings.TrimSpace(item)
		if strings.HasPrefix(item, "application/json") && strings.Contains(item, "as=APIGroupDiscoveryList") &&
			(strings.Contains(item+";", "v=v2;") || strings.Contains(item, "v=v2beta1")) {
			return item
		}
	}
	return ""
}
