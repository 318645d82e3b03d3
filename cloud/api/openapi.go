// SPDX-License-Identifier: Apache-2.0

package api

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"

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

type jsonObject = map[string]any

// openapi makes the OpenAPI documents, each when it is first asked for: one costs about 100 ms.
type openapi struct {
	kinds   []Kind
	version string

	mu    sync.Mutex
	built map[string][]byte
}

// decodeSchemas decodes the schemas anew on each call: they are large and seldom asked for.
func decodeSchemas() jsonObject {
	all := jsonObject{}
	_ = json.Unmarshal(schemaText, &all) // a test decodes it
	return all
}

func (k *Kind) gvk() jsonObject {
	return jsonObject{"group": k.Group, "version": k.Version, "kind": k.Name}
}

// addSchema adds the schema of the kind to named.
func (k *Kind) addSchema(named, all jsonObject) {
	named[k.schemaName()] = all[k.schemaName()]
	if k.dialect != nil {
		named[k.schemaName()] = k.dialect.schema(all)
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
func (o *openapi) openapi3(group, version string) any {
	all := decodeSchemas()
	named, paths := jsonObject{metaName: all[metaName]}, jsonObject{}
	for i := range o.kinds {
		k := &o.kinds[i]
		if k.Group != group || k.Version != version {
			continue
		}
		k.addSchema(named, all)
		kind, at := k.gvk(), k.collectionPath()
		body := jsonObject{"content": jsonObject{"application/json": jsonObject{"schema": jsonObject{"$ref": "#/components/schemas/" + k.schemaName()}}}}
		paths[at] = jsonObject{"get": openapiOperation("list", kind, nil), "post": openapiOperation("post", kind, body), "delete": openapiOperation("deletecollection", kind, nil)}
		paths[at+"/{name}"] = jsonObject{
			"get": openapiOperation("get", kind, nil), "put": openapiOperation("put", kind, body),
			"patch": openapiOperation("patch", kind, nil), "delete": openapiOperation("delete", kind, nil),
		}
	}
	return jsonObject{
		"openapi": "3.0.0", "info": jsonObject{"title": "Edgebus", "version": o.version},
		"paths": paths, "components": jsonObject{"schemas": named},
	}
}

func openapiOperation(action string, kind, body jsonObject) jsonObject {
	op := jsonObject{
		"x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind,
		"responses": jsonObject{"200": jsonObject{"description": "OK"}},
	}
	if action == "post" || action == "put" || action == "patch" {
		var params []any
		for _, name := range []string{"dryRun", "fieldManager", "fieldValidation"} {
			params = append(params, jsonObject{"name": name, "in": "query", "schema": jsonObject{"type": "string"}})
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
func (o *openapi) openapi2(w http.ResponseWriter, r *http.Request) error {
	binary := strings.Contains(r.Header.Get("Accept"), "proto-openapi.spec.v2")
	raw, err := o.get("v2/"+strconv.FormatBool(binary), func() ([]byte, error) {
		text, err := json.Marshal(o.swagger())
		if err != nil || !binary {
			return append(text, '\n'), err
		}
		doc, err := openapi2.ParseDocument(text)
		if err != nil {
			return nil, err
		}
		return proto.Marshal(doc)
	})
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", map[bool]string{true: openapi2Type, false: "application/json"}[binary])
	_, _ = w.Write(raw) // the client may be gone
	return nil
}

func (o *openapi) get(name string, first func() ([]byte, error)) ([]byte, error) {
	o.mu.Lock() // others wait for it, whichever they ask for
	defer o.mu.Unlock()
	if raw, ok := o.built[name]; ok {
		return raw, nil
	}
	raw, err := first()
	if err != nil {
		return nil, err
	}
	if o.built == nil {
		o.built = make(map[string][]byte)
	}
	o.built[name] = raw
	return raw, nil
}

// document is the OpenAPI 3 document of a group and version, as it is served.
func (o *openapi) document(group, version string) any {
	raw, _ := o.get("v3/"+group+"/"+version, func() ([]byte, error) { return json.Marshal(o.openapi3(group, version)) }) // our own types
	return json.RawMessage(raw)
}

// swagger is the OpenAPI 2 document. Clients look for its definitions; a path for each kind says which patches and
// parameters there are.
func (o *openapi) swagger() any {
	definitions, paths := decodeSchemas(), jsonObject{}
	for i := range o.kinds {
		k := &o.kinds[i]
		k.addSchema(definitions, definitions)
		operation := func(action string) jsonObject {
			return jsonObject{"x-kubernetes-action": action, "x-kubernetes-group-version-kind": k.gvk(), "responses": jsonObject{"200": jsonObject{"description": "OK"}}}
		}
		all, one := jsonObject{"get": operation("list")}, jsonObject{"get": operation("get")}
		if !k.readOnly() {
			all["post"], all["delete"] = operation("post"), operation("deletecollection")
			one["put"], one["patch"], one["delete"] = operation("put"), operation("patch"), operation("delete")
			patch := one["patch"].(jsonObject)
			patch["consumes"], patch["parameters"] = k.patches(), []any{jsonObject{"name": "dryRun", "in": "query", "type": "string"}}
		}
		paths[k.collectionPath()], paths[k.collectionPath()+"/{name}"] = all, one
	}
	return jsonObject{"swagger": "2.0", "info": jsonObject{"title": "Edgebus", "version": o.version}, "paths": paths, "definitions": toSwagger(definitions)}
}

// toSwagger turns OpenAPI 3 references into OpenAPI 2 references.
func toSwagger(v any) any {
	switch v := v.(type) {
	case jsonObject:
		if all, ok := v["allOf"].([]any); ok && len(all) == 1 {
			ref, _ := all[0].(jsonObject)["$ref"].(string)
			return jsonObject{"$ref": "#/definitions/" + ref[strings.LastIndex(ref, "/")+1:]}
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
