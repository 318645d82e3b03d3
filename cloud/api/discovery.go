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

var (
	verbs       = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	statusVerbs = []string{"get", "patch", "update"}
)

type dict = map[string]any

// discovery serves what clients read to find out what there is: the lists of
// groups and kinds, in the old form and the aggregated one, and the schemas.
func (s *server) discovery(mux *http.ServeMux) {
	serve := func(path string, plain, aggregated func() any) {
		mux.Handle("GET "+path, s.handle(func(w http.ResponseWriter, r *http.Request) error {
			if media := aggregatedType(r); media != "" && aggregated != nil {
				w.Header().Set("Vary", "Accept")
				writeAs(w, media, aggregated())
				return nil
			}
			writeJSON(w, http.StatusOK, plain())
			return nil
		}))
	}
	groups, paths := []any{}, dict{}
	for _, g := range s.groups() {
		for _, version := range g.versions {
			root := (&Kind{Group: g.name, Version: version}).root()
			at := strings.TrimPrefix(root, "/")
			paths[at] = dict{"serverRelativeURL": "/openapi/v3/" + at}
			serve(root, func() any { return s.resources(g.name, version) }, nil)
			serve("/openapi/v3/"+at, func() any { return s.openapi(g.name, version) }, nil)
		}
		if g.name != "" {
			groups = append(groups, g.described())
			serve("/apis/"+g.name, g.described, nil)
		}
	}
	serve("/api", func() any {
		return dict{"kind": "APIVersions", "versions": []string{"v1"}, "serverAddressByClientCIDRs": []any{}}
	}, func() any { return s.aggregated(true) })
	serve("/apis", func() any { return dict{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups} },
		func() any { return s.aggregated(false) })
	serve("/version", func() any { return s.version() }, nil)
	serve("/openapi/v3", func() any { return dict{"paths": paths} }, nil)
}

// aggregatedType is the media type of the aggregated form, if the client asks for it.
func aggregatedType(r *http.Request) string {
	for item := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if strings.Contains(item, "as=APIGroupDiscoveryList") && strings.HasPrefix(strings.TrimSpace(item), "application/json") &&
			(strings.Contains(item, "v=v2;") || strings.HasSuffix(item, "v=v2") || strings.Contains(item, "v=v2beta1")) {
			return strings.TrimSpace(item)
		}
	}
	return ""
}

func writeAs(w http.ResponseWriter, media string, v any) {
	writeJSON(contentType{w, media}, http.StatusOK, v)
}

// contentType replaces the Content-Type that is about to be written.
type contentType struct {
	http.ResponseWriter
	media string
}

func (c contentType) WriteHeader(code int) {
	c.Header().Set("Content-Type", c.media)
	c.ResponseWriter.WriteHeader(code)
}

// apiGroup is a group of kinds, with its versions, the preferred one first.
type apiGroup struct {
	name     string
	versions []string
}

func (g apiGroup) described() any {
	var versions []any
	for _, v := range g.versions {
		versions = append(versions, dict{"groupVersion": g.name + "/" + v, "version": v})
	}
	return dict{
		"kind": "APIGroup", "apiVersion": "v1", "name": g.name,
		"versions": versions, "preferredVersion": versions[0],
	}
}

// groups are those of the kinds, in the kinds' order: for a plural that several have,
// kubectl takes the first.
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

func (s *server) resources(group, version string) any {
	list := []any{}
	for _, k := range s.Kinds {
		if k.Group != group || k.Version != version {
			continue
		}
		list = append(list, dict{
			"name": k.Plural, "singularName": k.Singular, "namespaced": k.Namespaced, "kind": k.Name, "verbs": k.verbs(), "shortNames": k.Short, "categories": k.categories(),
		})
		if !k.NoStatus {
			list = append(list, dict{"name": k.Plural + "/status", "singularName": "", "namespaced": k.Namespaced, "kind": k.Name, "verbs": statusVerbs})
		}
	}
	if k := &namespaceKind; group == k.Group && version == k.Version {
		list = append(list, dict{"name": k.Plural, "singularName": k.Singular, "namespaced": false, "kind": k.Name, "verbs": k.verbs(), "shortNames": k.Short})
	}
	version = (&Kind{Group: group, Version: version}).apiVersion()
	return dict{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": list}
}

// aggregated is all that discovery has to say, of the core group or of the others.
func (s *server) aggregated(core bool) any {
	items := []any{}
	for _, g := range s.groups() {
		if (g.name == "") != core {
			continue
		}
		versions := []any{}
		for _, version := range g.versions {
			list := []any{}
			for i := range s.Kinds {
				if k := &s.Kinds[i]; k.Group == g.name && k.Version == version {
					list = append(list, k.discovered())
				}
			}
			if core && version == namespaceKind.Version {
				list = append(list, namespaceKind.discovered())
			}
			versions = append(versions, dict{"version": version, "resources": list, "freshness": "Current"})
		}
		items = append(items, dict{"metadata": dict{"name": g.name, "creationTimestamp": nil}, "versions": versions})
	}
	return dict{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": dict{}, "items": items}
}

func (k *Kind) discovered() any {
	scope := "Cluster"
	if k.Namespaced {
		scope = "Namespaced"
	}
	d := dict{
		"resource": k.Plural, "responseKind": k.gvk(), "scope": scope, "singularResource": k.Singular,
		"verbs": k.verbs(), "shortNames": k.Short, "categories": k.categories(),
	}
	if !k.NoStatus {
		d["subresources"] = []any{dict{"subresource": "status", "responseKind": k.gvk(), "verbs": statusVerbs}}
	}
	return d
}

func (s *server) version() any {
	// kubectl compares itself with the Kubernetes that this speaks like.
	return dict{
		"major": "1", "minor": "32", "gitVersion": "v1.32.0+edgebus-" + strings.TrimPrefix(s.Version, "v"),
		"goVersion": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
	}
}

// schemaText is OpenAPI's schema of each kind, made of the Go types in topics/resource and
// their comments: make golden.
//
//go:embed schemas.json
var schemaText []byte

const metaName = "io.edgebus.v1.ObjectMeta"

// schemas reads the schemas anew for each who asks: it is seldom, and they are large.
func schemas() dict {
	all := dict{}
	_ = json.Unmarshal(schemaText, &all) // a test has read it
	return all
}

// schemaName is the name of the kind's schema: io.edgebus.v1alpha1.Device.
func (k *Kind) schemaName() string {
	group := k.Group
	if group == "" {
		group = "core"
	}
	parts := strings.Split(group, ".")
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return strings.Join(parts, ".") + "." + k.Version + "." + k.Name
}

// openapi is the document of one group and version, in OpenAPI 3.
func (s *server) openapi(group, version string) any {
	all := schemas()
	named, paths := dict{metaName: all[metaName]}, dict{}
	for i := range s.Kinds {
		k := &s.Kinds[i]
		if k.Group != group || k.Version != version {
			continue
		}
		kind := k.gvk()
		named[k.schemaName()] = all[k.schemaName()]
		if k.foreign != nil {
			named[k.schemaName()] = k.foreign.schema(metaName)
		}
		ref := dict{"content": dict{"application/json": dict{"schema": dict{"$ref": "#/components/schemas/" + k.schemaName()}}}}
		at := k.root() + "/"
		if k.Namespaced {
			at += "namespaces/{namespace}/"
		}
		paths[at+k.Plural] = dict{"get": operation("list", kind, nil), "post": operation("post", kind, ref), "delete": operation("deletecollection", kind, nil)}
		paths[at+k.Plural+"/{name}"] = dict{
			"get": operation("get", kind, nil), "put": operation("put", kind, ref),
			"patch": operation("patch", kind, nil), "delete": operation("delete", kind, nil),
		}
	}
	return dict{
		"openapi": "3.0.0", "info": dict{"title": "Edgebus", "version": s.Version},
		"paths": paths, "components": dict{"schemas": named},
	}
}

func (k *Kind) gvk() dict { return dict{"group": k.Group, "version": k.Version, "kind": k.Name} }

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

// openapi2Type is what the answer is called. Clients ask for spec.v2@v1.0, which is no media type that
// they could read.
const openapi2Type = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

// openapi2 serves the schemas in OpenAPI 2, which old clients validate with; in protobuf to those who ask
// for it, since some read nothing else. It is made for each: few ask, and once.
func (s *server) openapi2(w http.ResponseWriter, r *http.Request) error {
	text, err := json.Marshal(s.swagger())
	if err != nil {
		return err
	}
	if !strings.Contains(r.Header.Get("Accept"), "proto-openapi.spec.v2") {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // a client that went away needs no answer
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
	_, _ = w.Write(raw)
	return nil
}

// swagger is all groups' schemas as OpenAPI 2 says it. Its definitions are what clients look for; a path a
// kind says which patches and parameters there are.
func (s *server) swagger() any {
	defs := schemas()
	paths := dict{}
	for i := range s.Kinds {
		k := &s.Kinds[i]
		if k.foreign != nil {
			defs[k.schemaName()] = k.foreign.schema(metaName)
		}
		at := k.root() + "/"
		if k.Namespaced {
			at += "namespaces/{namespace}/"
		}
		paths[at+k.Plural+"/{name}"] = dict{"patch": dict{
			"consumes": k.patches(), "x-kubernetes-action": "patch",
			"x-kubernetes-group-version-kind": k.gvk(), "responses": dict{"200": dict{"description": "OK"}},
			"parameters": []any{dict{"name": "dryRun", "in": "query", "type": "string"}},
		}}
	}
	return dict{
		"swagger": "2.0", "info": dict{"title": "Edgebus", "version": s.Version}, "paths": paths,
		"definitions": asSwagger(defs),
	}
}

// asSwagger writes OpenAPI 3's references as OpenAPI 2's.
func asSwagger(v any) any {
	switch v := v.(type) {
	case dict:
		if all, ok := v["allOf"].([]any); ok && len(all) == 1 {
			ref, _ := all[0].(dict)["$ref"].(string)
			return dict{"$ref": "#/definitions/" + ref[strings.LastIndex(ref, "/")+1:]}
		}
		for name := range v {
			v[name] = asSwagger(v[name])
		}
	case []any:
		for i := range v {
			v[i] = asSwagger(v[i])
		}
	}
	return v
}
