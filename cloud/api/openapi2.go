package api

import (
	"encoding/json"
	"net/http"
	"strings"

	openapi2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
)

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
