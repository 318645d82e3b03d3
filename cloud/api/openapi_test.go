// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	openapi2 "github.com/google/gnostic-models/openapiv2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/topics/resource"
)

// golden says to write the golden files anew: make golden.
var golden = os.Getenv("GOLDEN") == "write"

// typeSource is the Go source of topics/resource: types by their names, with comments.
type typeSource map[string]*ast.TypeSpec

func readSource(t *testing.T) typeSource {
	files, err := filepath.Glob("../../topics/resource/*.go")
	require.NoError(t, err)
	types := typeSource{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != gotoken.TYPE {
				continue
			}
			for _, spec := range gen.Specs {
				spec := spec.(*ast.TypeSpec)
				if spec.Doc == nil {
					spec.Doc = gen.Doc
				}
				types[spec.Name.Name] = spec
			}
		}
	}
	return types
}

// commentOf splits a comment into what it says and its markers, such as +listType=map.
func commentOf(groups ...*ast.CommentGroup) (text string, markers map[string][]string) {
	markers = map[string][]string{}
	var lines []string
	for _, g := range groups {
		if g == nil {
			continue
		}
		for _, c := range g.List {
			line := strings.TrimSpace(strings.TrimPrefix(c.Text, "//"))
			if marker, ok := strings.CutPrefix(line, "+"); ok {
				name, value, _ := strings.Cut(strings.TrimPrefix(marker, "kubebuilder:validation:"), "=")
				markers[name] = append(markers[name], value)
			} else {
				lines = append(lines, line)
			}
		}
	}
	return strings.TrimSpace(strings.Join(lines, " ")), markers
}

func applyMarkers(def jsonObject, markers map[string][]string) {
	for name, values := range markers {
		value := values[0]
		number, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "Enum":
			def["enum"] = strings.Split(value, ";")
		case "Minimum":
			def["minimum"] = number
		case "default": // what is meant when it is missing
			def["default"] = value
			if def["type"] == "integer" {
				def["default"] = number
			}
		case "MaxItems":
			def["maxItems"] = number
		case "Pattern":
			def["pattern"] = strings.Trim(value, "`")
		case "listType":
			def["x-kubernetes-list-type"] = value
		case "listMapKey":
			def["x-kubernetes-list-map-keys"] = values
		case "Type": // of raw JSON
			delete(def, "x-kubernetes-preserve-unknown-fields")
			def["type"] = value
			def["items"] = jsonObject{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
			def["x-kubernetes-list-type"] = "atomic"
		}
	}
}

// schema describes a type of the source.
func (s typeSource) schema(t *testing.T, expr ast.Expr) jsonObject {
	switch e := expr.(type) {
	case *ast.StarExpr:
		return s.schema(t, e.X)
	case *ast.ArrayType:
		if id, ok := e.Elt.(*ast.Ident); ok && id.Name == "byte" {
			return jsonObject{"type": "string", "format": "byte"}
		}
		return jsonObject{"type": "array", "items": s.schema(t, e.Elt)}
	case *ast.MapType:
		return jsonObject{"type": "object", "additionalProperties": s.schema(t, e.Value)}
	case *ast.SelectorExpr:
		switch e.Sel.Name {
		case "Time":
			return jsonObject{"type": "string", "format": "date-time"}
		case "RawMessage":
			return jsonObject{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
		}
	case *ast.StructType:
		return s.object(t, e)
	case *ast.Ident:
		return s.named(t, e.Name)
	}
	require.Fail(t, "a type without a schema", "%T %v", expr, expr)
	return nil
}

func (s typeSource) named(t *testing.T, name string) jsonObject {
	switch name {
	case "string":
		return jsonObject{"type": "string"}
	case "bool":
		return jsonObject{"type": "boolean"}
	case "float64":
		return jsonObject{"type": "number", "format": "double"}
	case "int", "int64", "uint64":
		return jsonObject{"type": "integer", "format": "int64"}
	case "MicroTime":
		return jsonObject{"type": "string", "format": "date-time"}
	case "Value": // a string, or a scalar that is taken for its text
		return jsonObject{"x-kubernetes-int-or-string": true}
	case "Meta":
		return jsonObject{"$ref": "#/components/schemas/" + metaName}
	}
	require.Contains(t, s, name)
	def := s.schema(t, s[name].Type)
	text, markers := commentOf(s[name].Doc)
	if text != "" {
		def["description"] = text
	}
	applyMarkers(def, markers)
	return def
}

func (s typeSource) object(t *testing.T, e *ast.StructType) jsonObject {
	props, required := jsonObject{}, []string{}
	for _, f := range e.Fields.List {
		if id, ok := f.Type.(*ast.Ident); ok && len(f.Names) == 0 && id.Name != "TypeMeta" {
			maps.Copy(props, s.named(t, id.Name)["properties"].(jsonObject))
			continue
		}
		if len(f.Names) == 0 { // TypeMeta
			props["apiVersion"] = jsonObject{"type": "string", "description": "The group and version of the kind."}
			props["kind"] = jsonObject{"type": "string", "description": "What the object is."}
			continue
		}
		tag, err := strconv.Unquote(f.Tag.Value)
		require.NoError(t, err)
		name, options, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		def := s.schema(t, f.Type)
		text, markers := commentOf(f.Doc, f.Comment)
		applyMarkers(def, markers)
		if def["$ref"] != nil { // nothing stands beside a reference
			def = jsonObject{"allOf": []any{def}, "description": "Name, labels, annotations and what the hub keeps beside them."}
		} else if text != "" {
			def["description"] = text
		}
		props[name] = def
		_, must := markers["required"]
		if must || options == "" && def["type"] == "string" {
			required = append(required, name)
		}
	}
	def := jsonObject{"type": "object", "properties": props}
	if len(required) > 0 {
		def["required"] = required
	}
	return def
}

// checkGolden compares a file with what it must be, or writes it.
func checkGolden(t *testing.T, name string, want []byte) {
	if golden {
		require.NoError(t, os.WriteFile(name, want, 0o644))
	}
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "%s is not what the Go types say: make golden", name)
}

// The schemas are what the Go types and their comments say, in one file that the hub holds.
func TestSchemasAreTheTypes(t *testing.T) {
	types := readSource(t)
	meta := types.schema(t, types["Meta"].Type)
	meta["description"] = "Metadata of an object."
	all := jsonObject{metaName: meta}
	for _, k := range Kinds() {
		def := types.named(t, k.Name)
		properties := def["properties"].(jsonObject)
		delete(properties, "desiredMeta") // clients never see it
		for canonical, name := range k.FieldNames {
			properties[name] = properties[canonical]
			delete(properties, canonical)
		}
		def["x-kubernetes-group-version-kind"] = []any{jsonObject{"group": k.Group, "version": k.Version, "kind": k.Name}}
		all[k.schemaName()] = def
	}
	text, err := json.MarshalIndent(all, "", " ")
	require.NoError(t, err)
	checkGolden(t, "schemas.json", append(text, '\n'))
}

// The Device API at the edge has those of its kinds: each under its group, version and name.
func TestTheEdgesSchemasAreTheHubs(t *testing.T) {
	all := decodeSchemas()
	edge := jsonObject{metaName: all[metaName]}
	for _, k := range addDialects(Kinds()) {
		switch name := k.Group + "/" + k.Version + "/" + k.schemaName(); {
		case k.Group == "devices.kubeedge.io":
			edge[name] = k.dialect.schema(all)
		case k.Group == resource.Group && slices.Contains([]string{resource.KindDevice, resource.KindDeviceModel, resource.KindNode}, k.Name):
			edge[name] = all[k.schemaName()]
		}
	}
	text, err := json.MarshalIndent(edge, "", "") // a line a field, for whoever merges it
	require.NoError(t, err)
	checkGolden(t, "../../edge/api/schemas.json", append(text, '\n'))
}

// The same schemas are there for a real cluster.
func TestCRDsAreTheSchemas(t *testing.T) {
	var out bytes.Buffer
	out.WriteString("# The kinds of edgebus.io as CustomResourceDefinitions, for a cluster. The hub itself needs none of them.\n")
	for _, k := range Kinds() {
		if k.Group != resource.Group {
			continue
		}
		text, err := yaml.Marshal(crd(t, k))
		require.NoError(t, err)
		out.WriteString("---\n")
		out.Write(text)
	}
	checkGolden(t, "../../docs/crds.yaml", out.Bytes())
}

func crd(t *testing.T, k Kind) jsonObject {
	all := decodeSchemas()
	def := all[k.schemaName()].(jsonObject)
	delete(def, "x-kubernetes-group-version-kind")
	props := def["properties"].(jsonObject)
	props["metadata"] = jsonObject{"type": "object"}
	scope := "Cluster"
	if k.Namespaced {
		scope = "Namespaced"
	}
	names := jsonObject{"kind": k.Name, "listKind": k.Name + "List", "plural": k.Plural, "singular": k.Singular, "shortNames": k.Short}
	require.NotEmpty(t, k.Short, k.Name)
	return jsonObject{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": jsonObject{"name": k.qualified()},
		"spec": jsonObject{
			"group": k.Group, "scope": scope, "names": names,
			"versions": []any{jsonObject{
				"name": k.Version, "served": true, "storage": true, "additionalPrinterColumns": printerColumns(k),
				"schema": jsonObject{"openAPIV3Schema": def}, "subresources": jsonObject{"status": jsonObject{}},
			}},
		},
	}
}

// printerColumns are the columns of a cluster's tables.
func printerColumns(k Kind) (cols []any) {
	for _, c := range k.Columns {
		if c.Path == "" {
			continue // is made of several fields, or of what a cluster doesn't keep
		}
		col := jsonObject{"name": c.Name, "type": c.Type, "description": c.Description, "jsonPath": c.Path}
		if c.Wide {
			col["priority"] = 1
		}
		cols = append(cols, col)
	}
	return append(cols, jsonObject{"name": "Age", "type": "date", "description": "Time since the object was created.", "jsonPath": ".metadata.creationTimestamp"})
}

// A column that says where it is from shows what is there.
func TestColumnsAreTheFieldsThatTheySay(t *testing.T) {
	all := readSamples(t)
	for _, k := range Kinds() {
		if k.Group != resource.Group {
			continue
		}
		v := k.New()
		require.NoError(t, json.Unmarshal([]byte(marshalText(t, all[k.Name][0])), v))
		cells := k.Cells(v)
		for i, c := range k.Columns {
			if c.Path == "" {
				continue
			}
			path := jsonpath.New(c.Name)
			require.NoError(t, path.Parse("{"+c.Path+"}"))
			var found bytes.Buffer
			require.NoError(t, path.Execute(&found, all[k.Name][0]), "%s %s", k.Name, c.Name)
			require.Equal(t, found.String(), fmt.Sprint(cells[i]), "%s %s", k.Name, c.Name)
			require.NotEmpty(t, found.String(), "%s %s: the sample has none", k.Name, c.Name)
		}
	}
}

// Every field says what it is, and what is meant without it: kubectl explain shows it.
func TestEveryFieldIsExplained(t *testing.T) {
	var visit func(at string, def jsonObject)
	visit = func(at string, def jsonObject) {
		props, _ := def["properties"].(jsonObject)
		for _, name := range slices.Sorted(maps.Keys(props)) {
			prop := props[name].(jsonObject)
			require.NotEmpty(t, prop["description"], "%s.%s has no comment", at, name)
			if def := prop["default"]; def != nil {
				require.Contains(t, prop["description"], fmt.Sprint(def), "%s.%s", at, name)
				if prop["enum"] != nil {
					require.Contains(t, prop["enum"], def, "%s.%s", at, name)
				}
			}
			visit(at+"."+name, prop)
		}
		for _, inner := range []string{"items", "additionalProperties"} {
			if below, ok := def[inner].(jsonObject); ok {
				visit(at, below)
			}
		}
	}
	for name, def := range decodeSchemas() {
		visit(name, def.(jsonObject))
	}
}

func TestOpenAPI2(t *testing.T) {
	h := newHub(t)
	plain := h.ok("GET", "/openapi/v2", "")
	require.Contains(t, plain.at("definitions"), "io.edgebus.v1alpha1.Device")
	raw := h.ok("GET", "/openapi/v2", "", "Accept", openapi2Type)
	require.Equal(t, openapi2Type, raw.header.Get("Content-Type"))
	doc := new(openapi2.Document)
	require.NoError(t, proto.Unmarshal(raw.body, doc))
	require.GreaterOrEqual(t, len(doc.GetDefinitions().GetAdditionalProperties()), len(Kinds())+1)
	require.True(t, json.Valid(plain.body))
}

// Discovery answers at paths with a final slash as well, and says what generated clients require.
func TestDiscoveryHasFinalSlashes(t *testing.T) {
	h := newHub(t)
	for _, path := range []string{"/version", "/api", "/api/v1", "/apis", "/apis/edgebus.io", apiRoot, "/apis/coordination.k8s.io/v1", "/openapi/v3"} {
		require.Equal(t, h.ok("GET", path, "").body, h.ok("GET", path+"/", "").body, path)
	}
	version := h.ok("GET", "/version", "")
	for _, field := range []string{"major", "minor", "gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"} {
		require.IsType(t, "", version.at(field), field)
	}
}

// What is written in base64 is text to clients, and OpenAPI 2 has each verb.
func TestOpenAPIHasBytesAsTextAndAllVerbs(t *testing.T) {
	h := newHub(t)
	schema := string(h.ok("GET", "/openapi/v3/apis/flightctl.io/v1beta1", "").body)
	require.Regexp(t, `"sshPrivateKey":\{[^}]*"format":"byte"[^}]*"type":"string"`, schema)
	v2 := h.ok("GET", "/openapi/v2", "")
	paths := v2.tree["paths"].(jsonObject)
	require.Len(t, paths[namespacePath("devices")], 3)
	require.Len(t, paths[namespacePath("devices")+"/{name}"], 4)
}

func namespacePath(plural string) string { return apiRoot + "/namespaces/{namespace}/" + plural }
