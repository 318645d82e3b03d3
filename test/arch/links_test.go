// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"

	"github.com/stretchr/testify/require"
)

var (
	codeFence   = regexp.MustCompile("(?ms)^```.*?^```$")
	codeSpan    = regexp.MustCompile("`[^`\n]*`")
	linkPattern = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]*)\)`)
	headingLine = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	// aDocument is a reference to a document, an ADR, or something in a folder of this repository.
	aDocument = regexp.MustCompile(`(?:[\w-]+/)*[\w-]+\.md\b(?:#[\w-]+)?|\bADR [0-9]{4}\b`)
	aPath     = regexp.MustCompile(`^(?:broker|cloud|configs|docs|edge|mappers|scripts|test|topics)/[\w./-]+\.(?:go|json|md|sh|txt|txtar|yaml)$`)
	inComment = regexp.MustCompile(`docs/[\w/-]+\.md\b|docs/adr/[0-9]{4}\b`)
)

// headingAnchors are those of a document's headings, as GitHub makes them.
func headingAnchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range headingLine.FindAllStringSubmatch(codeFence.ReplaceAllString(text, ""), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(linkPattern.ReplaceAllStringFunc(m[1], func(s string) string { return s[1:strings.Index(s, "]")] })) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				b.WriteRune(r)
			}
		}
		name := b.String()
		for n := 1; all[name]; n++ {
			name = fmt.Sprintf("%s-%d", b.String(), n)
		}
		all[name] = true
	}
	return all
}

// brokenReferences are what is wrong with the references of a document: links that lead nowhere, and documents that are named in plain text.
func brokenReferences(root fs.FS, name string) (wrong []string, err error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, err
	}
	prose := codeFence.ReplaceAllString(string(text), "")
	for _, m := range linkPattern.FindAllStringSubmatch(prose, -1) {
		file, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(m[1], "://") {
			continue
		}
		to := name
		if file != "" {
			to = path.Join(path.Dir(name), file)
		}
		info, err := fs.Stat(root, to)
		switch {
		case err != nil:
			wrong = append(wrong, m[0]+": there is no "+to)
		case anchor != "" && !info.IsDir():
			target, err := fs.ReadFile(root, to)
			if err != nil {
				return nil, err
			}
			if !headingAnchors(string(target))[anchor] {
				wrong = append(wrong, m[0]+": "+to+" has no such heading")
			}
		}
	}
	plain := linkPattern.ReplaceAllString(prose, "")
	for _, span := range codeSpan.FindAllString(plain, -1) {
		if at := strings.Trim(span, "`"); aPath.MatchString(at) {
			if _, err := fs.Stat(root, strings.TrimSuffix(at, "/")); err != nil {
				wrong = append(wrong, span+": there is no such file")
			}
		}
	}
	for _, m := range aDocument.FindAllString(codeSpan.ReplaceAllString(plain, ""), -1) {
		wrong = append(wrong, m+": is plain text, and no link")
	}
	return wrong, nil
}

func TestReferencesOfDocumentsLeadSomewhere(t *testing.T) {
	root := os.DirFS(filepath.Join("..", ".."))
	documents := []string{"README.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"docs/*.md", "docs/adr/*.md"} {
		found, err := fs.Glob(root, pattern)
		require.NoError(t, err)
		documents = append(documents, found...)
	}
	require.Greater(t, len(documents), 100)
	for _, name := range documents {
		wrong, err := brokenReferences(root, name)
		require.NoError(t, err)
		for _, w := range wrong {
			t.Errorf("%s: %s", name, w)
		}
	}
}

func TestDocumentsThatCommentsNameExist(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, p := range listPackages(t) {
		for _, file := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(root, p.path(), file))
			require.NoError(t, err)
			for _, name := range inComment.FindAllString(string(text), -1) {
				found, err := filepath.Glob(filepath.Join(root, strings.TrimSuffix(name, ".md")+"*"))
				require.NoError(t, err)
				if len(found) == 0 {
					t.Errorf("%s/%s names %s, which does not exist", p.path(), file, name)
				}
			}
		}
	}
}

func TestBrokenReferencesAreFound(t *testing.T) {
	root := fstest.MapFS{
		"docs/a.md":     {Data: []byte("# One thing\n## `spec` & more\n[b](b.md) [here](#one-thing) [more](a.md#spec--more) [x](https://example.org/none.md) `broker/doc.go` `v1/nodes/a.md`\n```\nsee none.md\n```\n")},
		"docs/b.md":     {Data: []byte("[none](none.md) [no heading](a.md#two-things) see a.md, [ADR 0001](a.md) and ADR 0002, `broker/none.go`, [up](../none.md)\n")},
		"broker/doc.go": {},
	}
	wrong, err := brokenReferences(root, "docs/a.md")
	require.NoError(t, err)
	require.Empty(t, wrong)
	wrong, err = brokenReferences(root, "docs/b.md")
	require.NoError(t, err)
	require.Equal(t, []string{
		"[none](none.md): there is no docs/none.md", "[no heading](a.md#two-things): docs/a.md has no such heading", "[up](../none.md): there is no none.md",
		"`broker/none.go`: there is no such file", "a.md: is plain text, and no link", "ADR 0002: is plain text, and no link",
	}, wrong)
}
