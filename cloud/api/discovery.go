package api

import (
	"net/http"
	"reflect"
	"runtime"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

var (
	verbs       = []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	statusVerbs = []string{"get", "patch", "update"}
)

type dict = map[string]any

// discovery serves what clients read to find out what there is: the lists of
// groups and kinds, in the old form and the aggregated one, and the schemas.
func (s *server) discovery(mux *http.ServeMux) {
	group := "/apis/" + resource.Group
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
	serve("/api", func() any {
		return dict{"kind": "APIVersions", "versions": []string{"v1"}, "serverAddressByClientCIDRs": []any{}}
	}, s.noCore)
	serve("/apis", func() any { return dict{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{s.group()}} }, s.aggregated)
	serve(group, func() any { return s.group() }, nil)
	serve("/api/v1", func() any { return dict{"kind": "APIResourceList", "groupVersion": "v1", "resources": []any{}} }, nil)
	serve(group+"/"+resource.Version, func() any { return s.resources() }, nil)
	serve("/version", func() any { return s.version() }, nil)
	serve("/openapi/v3", func() any {
		path := "apis/" + resource.APIVersion
		return dict{"paths": dict{path: dict{"serverRelativeURL": "/openapi/v3/" + path}}}
	}, nil)
	serve("/openapi/v3/apis/"+resource.APIVersion, func() any { return s.openapi() }, nil)
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

func (s *server) group() any {
	version := dict{"groupVersion": resource.APIVersion, "version": resource.Version}
	return dict{
		"kind": "APIGroup", "apiVersion": "v1", "name": resource.Group,
		"versions": []any{version}, "preferredVersion": version,
	}
}

func (s *server) resources() any {
	list := []any{}
	for _, k := range s.Kinds {
		list = append(list,
			dict{"name": k.Plural, "singularName": k.Singular, "namespaced": k.Namespaced, "kind": k.Name, "verbs": verbs, "shortNames": k.Short},
			dict{"name": k.Plural + "/status", "singularName": "", "namespaced": k.Namespaced, "kind": k.Name, "verbs": statusVerbs},
		)
	}
	return dict{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": resource.APIVersion, "resources": list}
}

func (s *server) aggregated() any {
	list := []any{}
	for _, k := range s.Kinds {
		scope := "Cluster"
		if k.Namespaced {
			scope = "Namespaced"
		}
		kind := dict{"group": resource.Group, "version": resource.Version, "kind": k.Name}
		list = append(list, dict{
			"resource": k.Plural, "responseKind": kind, "scope": scope, "singularResource": k.Singular,
			"verbs": verbs, "shortNames": k.Short,
			"subresources": []any{dict{"subresource": "status", "responseKind": kind, "verbs": statusVerbs}},
		})
	}
	return groups(dict{
		"metadata": dict{"name": resource.Group, "creationTimestamp": nil},
		"versions": []any{dict{"version": resource.Version, "resources": list, "freshness": "Current"}},
	})
}

func (s *server) noCore() any {
	return groups(dict{
		"metadata": dict{"name": "", "creationTimestamp": nil},
		"versions": []any{dict{"version": "v1", "resources": []any{}, "freshness": "Current"}},
	})
}

func groups(items ...any) any {
	return dict{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": dict{}, "items": items}
}

func (s *server) version() any {
	// kubectl compares itself with the Kubernetes that this speaks like.
	return dict{
		"major": "1", "minor": "32", "gitVersion": "v1.32.0+edgebus-" + strings.TrimPrefix(s.Version, "v"),
		"goVersion": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
	}
}

// openapi is made from the Go types: enough for clients to know the fields.
func (s *server) openapi() any {
	schemas, paths := dict{}, dict{}
	for _, k := range s.Kinds {
		kind := dict{"group": resource.Group, "version": resource.Version, "kind": k.Name}
		name := "io.edgebus." + resource.Version + "." + k.Name
		def := schema(reflect.TypeOf(k.New()))
		for _, private := range k.Private {
			delete(def["properties"].(dict), private)
		}
		def["x-kubernetes-group-version-kind"] = []any{kind}
		schemas[name] = def
		at := "/apis/" + resource.APIVersion + "/"
		if k.Namespaced {
			at += "namespaces/{namespace}/"
		}
		ref := dict{"content": dict{"application/json": dict{"schema": dict{"$ref": "#/components/schemas/" + name}}}}
		paths[at+k.Plural] = dict{"get": operation("list", kind, nil), "post": operation("post", kind, ref)}
		paths[at+k.Plural+"/{name}"] = dict{
			"get": operation("get", kind, nil), "put": operation("put", kind, ref),
			"patch": operation("patch", kind, nil), "delete": operation("delete", kind, nil),
		}
	}
	return dict{
		"openapi": "3.0.0", "info": dict{"title": "Edgebus", "version": s.Version},
		"paths": paths, "components": dict{"schemas": schemas},
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
