// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An error's text is for people, and may quote whoever is at the other end: it decides nothing. Errors have types and codes for that.
func TestNoPackageDecidesByTheTextOfAnError(t *testing.T) {
	visitSources(t, func(path string, text []byte) {
		if strings.HasSuffix(path, "_test.go") || isBelow(path, "test") {
			return
		}
		for _, at := range comparesErrorText(t, path, text) {
			t.Errorf("%s decides by the text of an error: use errors.Is or errors.As, or have the error's maker give it a type", at)
		}
	})
}

func TestDecisionsByTheTextOfAnErrorAreFound(t *testing.T) {
	for code, found := range map[string]int{
		`strings.Contains(err.Error(), "gone")`:                            1,
		`strings.Contains(strings.ToLower(err.Error()), "gone")`:           1,
		`strings.HasPrefix(fmt.Sprint(err), "gone")`:                       1,
		`regexp.MustCompile("gone").MatchString(err.Error())`:              1,
		`err.Error() == "gone"`:                                            1,
		`func() bool { why := err.Error(); return why == "gone" }()`:       1,
		`func() bool { switch err.Error() { case "a": }; return false }()`: 1,
		`rejected(err.Error())`:                                            0,
		`errors.Is(err, gone)`:                                             0,
		`strings.TrimPrefix(err.Error(), "oidc: ") != nil`:                 0,
		`err.Error() == ""`:                                                0,
	} {
		require.Len(t, comparesErrorText(t, "x.go", []byte("package x\nfunc f(err error) any { return "+code+" }\n")), found, code)
	}
}

// comparingFunctions are functions that compare texts.
var comparingFunctions = map[string]bool{
	"Contains": true, "ContainsAny": true, "ContainsFunc": true, "HasPrefix": true, "HasSuffix": true, "EqualFold": true, "Index": true, "Count": true,
	"MatchString": true, "FindString": true, "FindStringSubmatch": true, "CutPrefix": true, "CutSuffix": true,
}

// comparesErrorText are the places in a file where a text that comes from an error is compared.
func comparesErrorText(t *testing.T, path string, text []byte) (found []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		f, ok := n.(*ast.FuncDecl)
		if !ok {
			return true
		}
		texts := map[string]bool{} // variables that hold an error's text
		ofError := func(e ast.Expr) (yes bool) { return isErrorText(e, texts) }
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for i, right := range n.Rhs {
					if name, ok := n.Lhs[min(i, len(n.Lhs)-1)].(*ast.Ident); ok && len(n.Lhs) == len(n.Rhs) && ofError(right) {
						texts[name.Name] = true
					}
				}
			case *ast.CallExpr:
				if called, ok := n.Fun.(*ast.SelectorExpr); ok && comparingFunctions[called.Sel.Name] && len(n.Args) > 0 && ofError(n.Args[0]) {
					found = append(found, files.Position(n.Pos()).String())
				}
			case *ast.BinaryExpr:
				if (n.Op == token.EQL || n.Op == token.NEQ) && (ofError(n.X) && isText(n.Y) || ofError(n.Y) && isText(n.X)) {
					found = append(found, files.Position(n.Pos()).String())
				}
			case *ast.SwitchStmt:
				if n.Tag != nil && ofError(n.Tag) {
					found = append(found, files.Position(n.Pos()).String())
				}
			}
			return true
		})
		return false
	})
	return found
}

// isErrorText reports whether an expression is the text of an error, or such a text in lower case and the like.
func isErrorText(e ast.Expr, texts map[string]bool) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return texts[e.Name]
	case *ast.ParenExpr:
		return isErrorText(e.X, texts)
	case *ast.CallExpr:
		called, ok := e.Fun.(*ast.SelectorExpr)
		switch {
		case !ok:
			return false
		case called.Sel.Name == "Error" && len(e.Args) == 0:
			return true
		case called.Sel.Name == "Sprint" && len(e.Args) == 1:
			arg, ok := e.Args[0].(*ast.Ident)
			return ok && arg.Name == "err"
		case called.Sel.Name == "ToLower", called.Sel.Name == "TrimSpace":
			return len(e.Args) == 1 && isErrorText(e.Args[0], texts)
		}
	}
	return false
}

// isText reports whether an expression is a text in the code. Two errors' texts are compared to say nothing twice.
func isText(e ast.Expr) bool {
	l, ok := e.(*ast.BasicLit)
	return ok && l.Kind == token.STRING && l.Value != `""`
}
