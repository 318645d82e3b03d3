package api

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"runtime"
	"slices"
	"strings"

	openapi2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
)

// schemaText is the OpenAPI schema of each canonical kind, generated from the Go types in topics/resource and their
// comments: make golden.
//
//go:embed schemas.json
var schemaText []byte

const (
	// metaName is the name of the schema of metadata.
	metaName = "io.edgebus.v1.ObjectMeta"
	// openapi2Type is the media type of the OpenAPI 2 document in protobuf. Clients ask for spec.v2@v1.0, which is no
	// media type that they can parse.
	openapi2Type = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
)

type dict = map[string]any

// discovery serves the lists of groups and kinds, in the legacy and the aggregated form, and the OpenAPI 3 documents.
func (s *server) discovery(mux *http.ServeMux) {
	serve := func(path string, legacy, aggregated func() any) {
		mux.Handle("GET "+path, s.handle(func(w http.ResponseWriter, r *http.Request) error {
			if media := aggregatedType(r); media != "" && aggregated != nil {
				w.Header().Set("Vary", "Accept")
				writeJSON(mediaTypeWriter{w, media}, http.StatusOK, aggregated())
				return nil
			}
			writeJSON(w, http.StatusOK, legacy())
			return nil
		}))
	}
	groups, paths := []any{}, dict{}
	for _, g := range s.groups() {
		for _, version := range g.versions {
			root := (&Kind{Group: g.name, Version: version}).root()
			at := strings.TrimPrefix(root, "/")
			paths[at] = dict{"serverRelativeURL": "/openapi/v3/" + at}
			serve(root, func() any { return s.resourceList(g.name, version) }, nil)
			serve("/openapi/v3/"+at, func() any { return s.openapi3(g.name, version) }, nil)
		}
		if g.name != "" {
			groups = append(groups, g.legacy())
			serve("/apis/"+g.name, g.legacy, nil)
		}
	}
	serve("/api", func() any {
		return dict{"kind": "APIVersions", "versions": []string{"v1"}, "serverAddressByClientCIDRs": []any{}}
	}, func() any { return s.aggregated(true) })
	serve("/apis", func() any { return dict{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups} },
		func() any { return s.aggregated(false) })
	serve("/version", s.version, nil)
	serve("/openapi/v3", func() any { return dict{"paths": paths} }, nil)
}

// aggregatedType is the media type of aggregated discovery, if the client asks for it.
func aggregatedType(r *http.Request) string {
	for item := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if strings.Contains(item, "as=APIGroupDiscoveryList") && strings.HasPrefix(strings.TrimSpace(item), "application/json") &&
			(strings.Contains(item, "v=v2;") || strings.HasSuffix(item, "v=v2") || strings.Contains(item, "v=v2beta1")) {
			return strings.TrimSpace(item)
		}
	}
	return ""
}

// mediaTypeWriter replaces the Content-Type of an answer.
type mediaTypeWriter struct {
	http.ResponseWriter
	media string
}

func (w mediaTypeWriter) WriteHeader(code int) {
	w.Header().Set("Content-Type", w.media)
	w.ResponseWriter.WriteHeader(code)
}

// apiGroup is an API group with its versions, the preferred one first.
type apiGroup struct {
	name     string
	versions []string
}

func (g apiGroup) legacy() any {
	var versions []any
	for _, v := range g.versions {
		versions = append(versions, dict{"groupVersion": g.name + "/" + v, "version": v})
	}
	return dict{"kind": "APIGroup", "apiVersion": "v1", "name": g.name, "versions": versions, "preferredVersion": versions[0]}
}

// groups are in the order of the kinds: kubectl takes the first group that has a plural.
func (s *server) groups() (out []apiGroup) {
	for _, k := range s.Kinds {
		i := slices.IndexFunc(out, func(g apiGroup) bool { return g.name == k.Group })
		if i < 0 {
			i, out = len(out), append(out, apiGroup{name: k.Group})
		}
		if !slices.Contains(out[i].versions, k.Version) {
			out[i].versions = append(out[i].versions, k.Version)
		}
	}
	return out
}

// kindsOf are the kinds of a group and version, namespaces included.
func (s *server) kindsOf(group, version string) (kinds []*Kind) {
	for i := range s.Kinds {
		if k := &s.Kinds[i]; k.Group == group && k.Version == version {
			kinds = append(kinds, k)
		}
	}
	if group == namespaceKind.Group && version == namespaceKind.Version {
		kinds = append(kinds, &namespaceKind)
	}
	return kinds
}

// resourceList is the legacy list of the kinds of a group and version.
func (s *server) resourceList(group, version string) any {
	list := []any{}
	for _, k := range s.kindsOf(group, version) {
		list = append(list, dict{
			"name": k.Plural, "singularName": k.Singular, "namespaced": k.Namespaced, "kind": k.Name, "verbs": k.verbs(), "shortNames": k.Short, "categories": k.categories(),
		})
		if !k.NoStatus {
			list = append(list, dict{"name": k.Plural + "/status", "singularName": "", "namespaced": k.Namespaced, "kind": k.Name, "verbs": statusVerbs})
		}
	}
	return dict{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": (&Kind{Group: group, Version: version}).apiVersion(), "resources": list}
}

// aggregated is the aggregated discovery of the core group, or of all others.
func (s *server) aggregated(core bool) any {
	items := []any{}
	for _, g := range s.groups() {
		if (g.name == "") != core {
			continue
		}
		versions := []any{}
		for _, version := range g.versions {
			list := []any{}
			for _, k := range s.kindsOf(g.name, version) {
				list = append(list, k.aggregated())
			}
			versions = append(versions, dict{"version": version, "resources": list, "freshness": "Current"})
		}
		items = append(items, dict{"metadata": dict{"name": g.name, "creationTimestamp": nil}, "versions": versions})
	}
	return dict{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": dict{}, "items": items}
}

func (k *Kind) aggregated() any {
	d := dict{
		"resource": k.Plural, "responseKind": k.gvk(), "scope": "Cluster", "singularResource": k.Singular,
		"verbs": k.verbs(), "shortNames": k.Short, "categories": k.categories(),
	}
	if k.Namespaced {
		d["scope"] = "Namespaced"
	}
	if !k.NoStatus {
		d["subresources"] = []any{dict{"subresource": "status", "responseKind": k.gvk(), "verbs": statusVerbs}}
	}
	return d
}

func (k *Kind) gvk() dict { return dict{"group": k.Group, "version": k.Version, "kind": k.Name} }

// version is that of a Kubernetes that works like this API; kubectl compares its own with it.
func (s *server) version() any {
	return dict{
		"major": "1", "minor": "32", "gitVersion": "v1.32.0+edgebus-" + strings.TrimPrefix(s.Version, "v"),
		"goVersion": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
	}
}

// schemas decodes the schemas anew on each call: they are large and seldom asked for.
func schemas() dict {
	all := dict{}
	_ = json.Unmarshal(schemaText, &all) // a test decodes it
	return all
}

// addSchema adds the schema of the kind to named.
func (k *Kind) addSchema(named, all dict) {
	named[k.schemaName()] = all[k.schemaName()]
	if k.dialect != nil {
		named[k.schemaName()] = k.dialect.schema()
	}
}

// collectionPath is the path of the kind's collection.
func (k *Kind) collectionPath() string {
	if k.Namespaced {
		return k.root() + "/namespaces/{namespace}/" + k.Plural
	}
	return k.root() + "/" + k.Plural
}

// openapi3 is the OpenAPI 3 document of a group and version.
func (s *server) openapi3(group, version string) any {
	all := schemas()
	named, paths := dict{metaName: all[metaName]}, dict{}
	for i := range s.Kinds {
		k := &s.Kinds[i]
		if k.Group != group || k.Version != version {
			continue
		}
		k.addSchema(named, all)
		kind, at := k.gvk(), k.collectionPath()
		body := dict{"content": dict{"application/json": dict{"schema": dict{"$ref": "#/components/schemas/" + k.schemaName()}}}}
		paths[at] = dict{"get": operation("list", kind, nil), "post": operation("post", kind, body), "delete": operation("deletecollection", kind, nil)}
		paths[at+"/{name}"] = dict{
			"get": operation("get", kind, nil), "put": operation("put", kind, body),
			"patch": operation("patch", kind, nil), "delete": operation("delete", kind, nil),
		}
	}
	return dict{
		"openapi": "3.0.0", "info": dict{"title": "Edgebus", "version": s.Version},
		"paths": paths, "components": dict{"schemas": named},
	}
}

func operation(action string, kind, body dict) dict {
	op := dict{
		"x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind,
		"responses": dict{"200": dict{"description": "OK"}},
	}
	if action == "post" || action == "put" || action == "patch" {
		var params []any
		for _, name := range []string{"dryRun", "fieldManager", "fieldValidation"} {
			params = append(params, dict{"name": name, "in": "query", "schema": dict{"type": "string"}})
		}
		op["parameters"] = params
	}
	if body != nil {
		op["requestBody"] = body
	}
	return op
}

// openapi2 serves the OpenAPI 2 document, with which old clients validate; in protobuf to clients that ask for it, some
// of which accept nothing else.
func (s *server) openapi2(w http.ResponseWriter, r *http.Request) error {
	text, err := json.Marshal(s.swagger())
	if err != nil {
		return err
	}
	if !strings.Contains(r.Header.Get("Accept"), "proto-openapi.spec.v2") {
		sendJSON(w, http.StatusOK, text)
		return nil
	}
	doc, err := openapi2.ParseDocument(text)
	if err != nil {
		return err
	}
	raw, err := proto.Marshal(doc)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", openapi2Type)
	_, _ = w.Write(raw) // the client may be gone
	return nil
}

// swagger is the OpenAPI 2 document. Clients look for its definitions; a path for each kind says which patches and
// parameters there are.
func (s *server) swagger() any {
	all, paths := schemas(), dict{}
	for i := range s.Kinds {
		k := &s.Kinds[i]
		k.addSchema(all, all)
		paths[k.collectionPath()+"/{name}"] = dict{"patch": dict{
			"consumes": k.patches(), "x-kubernetes-action": "patch",
			"x-kubernetes-group-version-kind": k.gvk(), "responses": dict{"200": dict{"description": "OK"}},
			"parameters": []any{dict{"name": "dryRun", "in": "query", "type": "string"}},
		}}
	}
	return dict{"swagger": "2.0", "info": dict{"title": "Edgebus", "version": s.Version}, "paths": paths, "definitions": toSwagger(all)}
}

// toSwagger turns OpenAPI 3 references into OpenAPI 2 references.
func toSwagger(v any) any {
	switch v := v.(type) {
	case dict:
		if all, ok := v["allOf"].([]any); ok && len(all) == 1 {
			ref, _ := all[0].(dict)["$ref"].(string)
			return dict{"$ref": "#/definitions/" + ref[strings.LastIndex(ref, "/")+1:]}
		}
		for name := range v {
			v[name] = toSwagger(v[name])
		}
	case []any:
		for i := range v {
			v[i] = toSwagger(v[i])
		}
	}
	return v
}
