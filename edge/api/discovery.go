package api

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"runtime"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

type dict = map[string]any

// schemas are those that the hub has of the kinds that are served here, as a test of the hub's API writes them: make golden.
//
//go:embed schemas.json
var schemas []byte

var readVerbs = []string{"get", "list", "watch"}

// discover serves what clients read to find out what there is: the lists of groups and kinds, in the old form and the
// aggregated one, and their schemas.
func (s *server) discover(mux *http.ServeMux) {
	serve := func(path string, plain, aggregated any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Accept")
			if media := aggregatedType(r); media != "" && aggregated != nil {
				w.Header().Set("Content-Type", media)
				_ = json.NewEncoder(w).Encode(aggregated) // the client is gone
				return
			}
			reply(w, http.StatusOK, plain)
		})
	}
	groups, items, paths := []any{}, []any{}, dict{}
	for _, g := range []string{resource.Group, kubeedge} {
		versions, discovered := []any{}, []any{}
		for _, v := range s.versions(g) {
			root := "/apis/" + g + "/" + v
			list, full := s.described(g, v)
			versions = append(versions, dict{"groupVersion": g + "/" + v, "version": v})
			discovered = append(discovered, dict{"version": v, "resources": full, "freshness": "Current"})
			serve(root, dict{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": g + "/" + v, "resources": list}, nil)
			paths[root[1:]] = dict{"serverRelativeURL": "/openapi/v3" + root}
			mux.HandleFunc("GET /openapi/v3"+root, func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, s.openapi(g, v)) })
		}
		group := dict{"kind": "APIGroup", "apiVersion": "v1", "name": g, "versions": versions, "preferredVersion": versions[0]}
		groups = append(groups, group)
		items = append(items, dict{"metadata": dict{"name": g, "creationTimestamp": nil}, "versions": discovered})
		serve("/apis/"+g, group, nil)
	}
	all := func(items []any) dict {
		return dict{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": dict{}, "items": items}
	}
	serve("/api", dict{"kind": "APIVersions", "versions": []string{"v1"}, "serverAddressByClientCIDRs": []any{}}, all([]any{}))
	serve("/api/v1", dict{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": []any{}}, nil)
	serve("/apis", dict{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}, all(items))
	serve("/openapi/v3", dict{"paths": paths}, nil)
	serve("/version", dict{
		"major": "1", "minor": "32", "gitVersion": "v1.32.0+edgebus", "goVersion": runtime.Version(), "compiler": runtime.Compiler,
		"platform": runtime.GOOS + "/" + runtime.GOARCH,
	}, nil)
}

const kubeedge = "devices.kubeedge.io"

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

// versions are those of a group, the preferred one first.
func (s *server) versions(group string) (out []string) {
	for _, k := range s.kinds {
		if k.group == group && !slices.Contains(out, k.version) {
			out = append(out, k.version)
		}
	}
	return out
}

// described are the kinds of a group's version, in the old form and the aggregated one.
func (s *server) described(group, version string) (list, full []any) {
	for _, k := range s.kinds {
		if k.group != group || k.version != version {
			continue
		}
		scope := "Cluster"
		if k.namespaced {
			scope = "Namespaced"
		}
		list = append(list, dict{
			"name": k.plural, "singularName": k.singular, "namespaced": k.namespaced, "kind": k.name, "verbs": readVerbs, "shortNames": k.short,
		})
		full = append(full, dict{
			"resource": k.plural, "responseKind": k.gvk(), "scope": scope, "singularResource": k.singular, "verbs": readVerbs, "shortNames": k.short,
		})
	}
	return list, full
}

func (k *kind) gvk() dict { return dict{"group": k.group, "version": k.version, "kind": k.name} }

// openapi is the document of a group's version, in OpenAPI 3, as far as kubectl explain reads it.
func (s *server) openapi(group, version string) any {
	all := map[string]json.RawMessage{}
	_ = json.Unmarshal(schemas, &all) // a test has read it
	named, paths := map[string]json.RawMessage{}, dict{}
	for name, schema := range all {
		if head, _, ok := strings.Cut(name, "/"); !ok || head == group && strings.HasPrefix(name, head+"/"+version+"/") {
			named[name[strings.LastIndex(name, "/")+1:]] = schema
		}
	}
	for _, k := range s.kinds {
		if k.group != group || k.version != version {
			continue
		}
		at := k.root() + "/"
		if k.namespaced {
			at += "namespaces/{namespace}/"
		}
		for path, action := range map[string]string{at + k.plural: "list", at + k.plural + "/{name}": "get"} {
			paths[path] = dict{"get": dict{
				"x-kubernetes-action": action, "x-kubernetes-group-version-kind": k.gvk(), "responses": dict{"200": dict{"description": "OK"}},
			}}
		}
	}
	return dict{"openapi": "3.0.0", "info": dict{"title": "Edgebus", "version": version}, "paths": paths, "components": dict{"schemas": named}}
}
