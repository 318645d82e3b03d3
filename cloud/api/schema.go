package api

import (
	_ "embed"
	"encoding/json"
	"strings"
)

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
