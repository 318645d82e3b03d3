// SPDX-License-Identifier: Apache-2.0

// Vocabulary checks names: a package-level name of one word is a word of MQTT, Kubernetes or Go, or stands in the glossary,
// so that a reader can guess it and a search can find it. Names of several words are left to reviewers.
//
//	go run ./scripts/vocabulary [FOLDER...]
//
// words.txt, beside this file, has the words of the three, and the exceptions with their reasons.
package main

import (
	_ "embed"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

//go:embed words.txt
var lists string

const glossary = "docs/glossary.md"

func main() {
	folders := os.Args[1:]
	if len(folders) == 0 {
		folders = []string{"broker", "cloud", "configs", "edge", "mappers", "scripts", "test", "topics"}
	}
	bad, err := run(folders)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vocabulary:", err)
		os.Exit(2)
	}
	for _, line := range bad {
		fmt.Println(line)
	}
	if len(bad) > 0 {
		fmt.Printf("%d names of one word are in no vocabulary: say what they hold (a verb with its object, a noun with its kind), or put the word into scripts/vocabulary/words.txt if it is one of MQTT, Kubernetes or Go\n", len(bad))
		os.Exit(1)
	}
}

// run returns what is wrong below folders, a line each.
func run(folders []string) ([]string, error) {
	terms, err := os.ReadFile(glossary)
	if err != nil {
		return nil, err
	}
	known, exceptions, err := parseWords(lists)
	if err != nil {
		return nil, err
	}
	for _, word := range glossaryWords(string(terms)) {
		known[word] = true
	}
	var bad []string
	files := token.NewFileSet()
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return filepath.SkipDir
			case filepath.Ext(path) != ".go":
				return nil
			}
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, id := range packageLevel(file) {
				word, single := oneWord(id.Name)
				if single && !isKnown(known, word) && !exceptions[word] {
					bad = append(bad, fmt.Sprintf("%s: %s", files.Position(id.Pos()), id.Name))
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return bad, nil
}

// parseWords reads words.txt: sections of words, and one of exceptions.
func parseWords(text string) (known, exceptions map[string]bool, err error) {
	known, exceptions = make(map[string]bool), make(map[string]bool)
	section := ""
	for i, line := range strings.Split(text, "\n") {
		switch heading, isHeading := strings.CutPrefix(line, "# "); {
		case isHeading:
			section, _, _ = strings.Cut(heading, ":")
		case strings.TrimSpace(line) == "":
		case section == "Exceptions":
			_, words, _ := strings.Cut(line, ":")
			if strings.TrimSpace(words) == "" {
				return nil, nil, fmt.Errorf("words.txt:%d: an exception is a reason, a colon, and the words", i+1)
			}
			for _, word := range strings.Fields(words) {
				exceptions[word] = true
			}
		case section == "":
			return nil, nil, errors.New("words.txt: it begins with a heading")
		default:
			for _, word := range strings.Fields(line) {
				known[word] = true
			}
		}
	}
	return known, exceptions, nil
}

// glossaryWords are the words of the glossary's first column.
func glossaryWords(text string) (words []string) {
	for _, line := range strings.Split(text, "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			words = append(words, regexp.MustCompile(`[a-z]+`).FindAllString(strings.ToLower(cells[1]), -1)...)
		}
	}
	return words
}

// isKnown is whether a word, or what it is the plural of, is in a vocabulary.
func isKnown(known map[string]bool, word string) bool {
	stem, plural := strings.CutSuffix(word, "ies")
	return known[word] || known[strings.TrimSuffix(word, "s")] || known[strings.TrimSuffix(word, "es")] || plural && known[stem+"y"]
}

// packageLevel are the names that a file declares for its package, but for tests, whose names say what they show.
func packageLevel(file *ast.File) (names []*ast.Ident) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && !slices.ContainsFunc([]string{"Test", "Benchmark", "Fuzz", "Example"}, func(prefix string) bool { return strings.HasPrefix(d.Name.Name, prefix) }) {
				names = append(names, d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name)
				case *ast.ValueSpec:
					names = append(names, s.Names...)
				}
			}
		}
	}
	return slices.DeleteFunc(names, func(id *ast.Ident) bool { return id.Name == "_" || id.Name == "main" || id.Name == "init" })
}

// oneWord is a name in lower case without the digits at its end, if it is of one word.
func oneWord(name string) (word string, single bool) {
	name = strings.TrimRight(name, "0123456789")
	for i, r := range name {
		if i > 0 && (r == '_' || unicode.IsUpper(r) && unicode.IsLower(rune(name[i-1]))) {
			return "", false
		}
	}
	runes := []rune(name)
	for i := 1; i+1 < len(runes); i++ { // URLOf, HTTPServer
		if unicode.IsUpper(runes[i-1]) && unicode.IsUpper(runes[i]) && unicode.IsLower(runes[i+1]) {
			return "", false
		}
	}
	return strings.ToLower(name), true
}
