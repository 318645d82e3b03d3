// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// A type with more methods or fields than this is several things under one name.
const (
	maxMethods = 40
	maxFields  = 25
)

// largeTypes are those that have more, and why.
var largeTypes = map[string]string{}

// TestTypesAreSmallEnoughToKnow counts the methods and fields of each type outside of tests.
func TestTypesAreSmallEnoughToKnow(t *testing.T) {
	methods, fields := make(map[string]int), make(map[string]int)
	files := token.NewFileSet()
	visitSources(t, func(path string, text []byte) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "test/") {
			return
		}
		file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(path)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv != nil {
					methods[dir+"."+receiverType(n.Recv.List[0].Type)]++
				}
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					for _, f := range s.Fields.List {
						fields[dir+"."+n.Name.Name] += max(len(f.Names), 1)
					}
				}
			}
			return true
		})
	})
	for name, n := range methods {
		if n > maxMethods && largeTypes[name] == "" {
			t.Errorf("%s has %d methods, and at most %d can be kept in mind: cut it by what it holds, or say in this test why not", name, n, maxMethods)
		}
	}
	for name, n := range fields {
		if n > maxFields && largeTypes[name] == "" {
			t.Errorf("%s has %d fields, and at most %d can be kept in mind: cut it by what belongs together, or say in this test why not", name, n, maxFields)
		}
	}
	for name := range largeTypes {
		if methods[name] <= maxMethods && fields[name] <= maxFields {
			t.Errorf("%s needs no exception any more", name)
		}
	}
}

// receiverType is the name of a method's type.
func receiverType(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverType(e.X)
	case *ast.IndexExpr:
		return receiverType(e.X)
	case *ast.IndexListExpr:
		return receiverType(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
