// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Setting is a key of a file of settings, such as link.tls.ca, and its new value.
type Setting struct{ Key, Value string }

// File is the file of settings that a program reads: the one that was named, else, for other users than root, the one in their own
// directory, else SystemFile. Where there is none, it is where the user would make one.
func File(program, named string) string {
	if named != "" {
		return named
	}
	system, own := SystemFile(program), userDir()
	if own == "" {
		return system
	}
	return ownOrSystem(filepath.Join(own, filepath.Base(system)), system)
}

// ownOrSystem is a user's own file of settings, or the host's if there is only that, or if the directory of the first is another user's.
func ownOrSystem(own, system string) string {
	_, err := os.Stat(own)
	if err == nil {
		return own
	}
	if _, none := os.Stat(system); !errors.Is(err, fs.ErrNotExist) || !errors.Is(none, fs.ErrNotExist) {
		return system
	}
	return own
}

// SystemFile is a program's file of settings on this host, which its service reads.
func SystemFile(program string) string { return filepath.Join(SystemDir, pageName(program)+".yaml") }

// userDir is the directory of a user's own files of settings; empty for root, and for who has no home.
func userDir() string {
	if os.Geteuid() == 0 {
		return ""
	}
	dir, err := os.UserConfigDir() // $XDG_CONFIG_HOME
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "edgebus")
}

// EditFile changes settings in a file, or makes the file. All else in it stays, comments too. The file is replaced whole;
// its mode and owner stay. If an alias of YAML is in the way, because the change would change another place as well or take away an anchor that is
// used there, the error names the line, and the file stays as it is.
func EditFile(file string, settings ...Setting) error {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err = editSettings(text, settings)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return WriteFileLike(file, file, text)
}

func editSettings(text []byte, settings []Setting) ([]byte, error) {
	document, err := parseSettings(text)
	if err != nil {
		return nil, err
	}
	for _, s := range settings {
		if err := setNode(document.Content[0], strings.Split(s.Key, "."), scalarNode(s.Value)); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Key, err)
		}
	}
	if err := checkAliases(document, document); err != nil {
		return nil, err
	}
	return encodeYAML(document)
}

// MergeSettings is a text of settings in which some are changed, by their keys with dots, to values in YAML. All else in it stays, comments too. A text with
// aliases is refused: a change at one place would be one at another place as well.
func MergeSettings(text []byte, settings map[string]string) ([]byte, error) {
	document, err := parseSettings(text)
	if err != nil {
		return nil, err
	}
	if !hasNoAliases(document) {
		return nil, errors.New("it has anchors or aliases of YAML")
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		value := new(yaml.Node)
		if err := yaml.Unmarshal([]byte(settings[key]), value); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if value.Kind == 0 || !hasNoAliases(value) {
			return nil, fmt.Errorf(`%s: must be a value in YAML, without anchors and aliases; "" is an empty text`, key)
		}
		removeComments(value)
		if err := setNode(document.Content[0], strings.Split(key, "."), value.Content[0]); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return encodeYAML(document)
}

// hasNoAliases reports whether there are no anchors or aliases in a node.
func hasNoAliases(n *yaml.Node) bool {
	return n.Anchor == "" && n.Kind != yaml.AliasNode && !slices.ContainsFunc(n.Content, func(n *yaml.Node) bool { return !hasNoAliases(n) })
}

func removeComments(n *yaml.Node) {
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	for _, next := range n.Content {
		removeComments(next)
	}
}

// parseSettings reads a file of settings, which may be empty or have nothing but comments.
func parseSettings(text []byte) (*yaml.Node, error) {
	document := new(yaml.Node)
	if err := yaml.Unmarshal(text, document); err != nil {
		return nil, err
	}
	if document.Kind == 0 || len(document.Content) == 0 || isNull(document.Content[0]) { // nothing but comments
		document.Kind, document.Content = yaml.DocumentNode, []*yaml.Node{{Kind: yaml.MappingNode}}
		if len(bytes.TrimSpace(text)) > 0 {
			document.HeadComment = strings.TrimSpace(string(text))
		}
	}
	return document, nil
}

func encodeYAML(document *yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	err := errors.Join(e.Encode(document), e.Close())
	return out.Bytes(), err
}

// setNode sets the value at a path of keys.
func setNode(root *yaml.Node, path []string, value *yaml.Node) error {
	old, err := valueAt(root, path)
	if err != nil {
		return err
	}
	value.LineComment, value.HeadComment, value.Line = old.LineComment, old.HeadComment, old.Line
	*old = *value
	return nil
}

// valueAt is the value at a path of keys. What is missing is made: sections on the way, and null as the value.
func valueAt(root *yaml.Node, path []string) (*yaml.Node, error) {
	at := root
	for _, key := range path {
		if err := checkUnshared(root, at); err != nil {
			return nil, err
		}
		if isNull(at) {
			at.Kind, at.Tag, at.Value = yaml.MappingNode, "", ""
		}
		if at.Kind != yaml.MappingNode {
			return nil, errors.New("there is a value where keys should be")
		}
		i := 0
		for i < len(at.Content) && at.Content[i].Value != key {
			i += 2
		}
		if i == len(at.Content) {
			at.Content = append(at.Content, scalarNode(key), &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"})
		}
		at = at.Content[i+1]
	}
	return at, nil
}

// checkUnshared returns an error if a change within a node would be one at another place as well.
func checkUnshared(root, n *yaml.Node) error {
	if n.Kind == yaml.AliasNode {
		return fmt.Errorf("line %d: the alias *%s stands for line %d, which would change as well; write what it stands for in its place", n.Line, n.Value, n.Alias.Line)
	}
	if alias := aliasOf(root, n); alias != nil {
		return fmt.Errorf("line %d: the anchor &%s is used in line %d, which would change as well; write the value there in place of *%s", n.Line, n.Anchor, alias.Line, n.Anchor)
	}
	return nil
}

// checkAliases returns an error if what an alias in n stands for is no longer in the document.
func checkAliases(document, n *yaml.Node) error {
	if n.Kind == yaml.AliasNode && (n.Alias.Anchor == "" || !containsNode(document, n.Alias)) {
		return fmt.Errorf("line %d: the alias *%s stands for line %d, which would be replaced; write what it stands for in its place", n.Line, n.Value, n.Alias.Line)
	}
	for _, next := range n.Content {
		if err := checkAliases(document, next); err != nil {
			return err
		}
	}
	return nil
}

func containsNode(n, other *yaml.Node) bool {
	return n == other || slices.ContainsFunc(n.Content, func(n *yaml.Node) bool { return containsNode(n, other) })
}

// aliasOf is the first alias in n that stands for the node anchored; nil: there is none.
func aliasOf(n, anchored *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias == anchored {
		return n
	}
	for _, next := range n.Content {
		if alias := aliasOf(next, anchored); alias != nil {
			return alias
		}
	}
	return nil
}

func scalarNode(value string) *yaml.Node {
	n := new(yaml.Node)
	n.SetString(value)
	return n
}

// WriteFileLike writes a file whole or not at all, durably, with the mode and owner of another one, which may be itself.
func WriteFileLike(file, like string, text []byte) error {
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target // the link stays
	}
	mode := fs.FileMode(0o640)
	if info, err := os.Stat(like); err == nil {
		mode = info.Mode().Perm()
	}
	f, err := os.OpenFile(file+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), copyOwner(like, f), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file+".new"))
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// AddUser adds a user to auth.users in a file of a program's settings. All else in it stays, comments too. What comes out is
// checked as the program does before the file is replaced.
func AddUser[T Hub | Core](program, file string, u User) error {
	return editUsers[T](program, file, func(text []byte) ([]byte, error) { return addUserTo(text, u) })
}

// RemoveUser removes a user from auth.users, as AddUser adds one; the comments on the user go, too.
func RemoveUser[T Hub | Core](program, file, name string) error {
	return editUsers[T](program, file, func(text []byte) ([]byte, error) { return removeUserFrom(text, name) })
}

func editUsers[T Hub | Core](program, file string, edit func([]byte) ([]byte, error)) error {
	unlock, err := lockDir(filepath.Dir(file)) // of two commands at once neither undoes what the other has written
	if err != nil {
		return err
	}
	defer unlock()
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err = edit(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	dir, err := os.MkdirTemp("", "edgebus-*") // for its owner alone
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	trial := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(trial, text, 0o600); err != nil {
		return err
	}
	if _, err := Load[T](program, trial, nil); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), trial, file)) // the trial is gone when this is read
	}
	return WriteFileLike(file, file, text)
}

func addUserTo(text []byte, u User) ([]byte, error) {
	document, err := parseSettings(text)
	if err != nil {
		return nil, err
	}
	list, err := userList(document.Content[0])
	if err != nil {
		return nil, err
	}
	if indexOfUser(list, u.Name) >= 0 {
		return nil, fmt.Errorf("auth.users: %q is listed already", u.Name)
	}
	entry := new(yaml.Node)
	if err := entry.Encode(u); err != nil {
		return nil, err
	}
	if len(list.Content) == 0 {
		list.Style = 0 // [] becomes one user a line
	}
	list.Content = append(list.Content, entry)
	return encodeYAML(document)
}

func removeUserFrom(text []byte, name string) ([]byte, error) {
	document, err := parseSettings(text)
	if err != nil {
		return nil, err
	}
	list, err := userList(document.Content[0])
	if err != nil {
		return nil, err
	}
	i := indexOfUser(list, name)
	if i < 0 {
		return nil, fmt.Errorf("auth.users: %q is not listed", name)
	}
	list.Content = slices.Delete(list.Content, i, i+1)
	if err := checkAliases(document, document); err != nil {
		return nil, err
	}
	return encodeYAML(document)
}

// indexOfUser is a user's place in auth.users; -1: it is not there.
func indexOfUser(list *yaml.Node, name string) int {
	return slices.IndexFunc(list.Content, func(n *yaml.Node) bool {
		var u User
		return n.Decode(&u) == nil && u.Name == name
	})
}

// userList is the list auth.users, which is made if there is none.
func userList(root *yaml.Node) (*yaml.Node, error) {
	at, err := valueAt(root, []string{"auth", "users"})
	if err == nil {
		err = checkUnshared(root, at)
	}
	if err != nil {
		return nil, err
	}
	if isNull(at) {
		at.Kind, at.Tag, at.Value = yaml.SequenceNode, "", ""
	}
	if at.Kind != yaml.SequenceNode {
		return nil, errors.New("auth.users is no list")
	}
	return at, nil
}
