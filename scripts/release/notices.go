// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// licenceList is the list that edgebus version --licenses prints, of what is linked into any program.
const licenceList = "cloud/cli/licenses.txt"

// chosenLicences are those of modules that let one choose, by the files that have them.
var chosenLicences = map[string]string{"github.com/eclipse/paho.golang": "edl-v10"}

// linkedModule is a module whose packages a program has.
type linkedModule struct {
	path, version, dir string
	packages           []string          // directories
	files              map[string]string // of licences and notices, by their names
	licences           []string          // SPDX identifiers
}

var licenceFile = regexp.MustCompile(`(?i)^(un)?licen[cs]e|^copying|^notice|^patents`)

// linkedModules are those that the programs have on any of the architectures, and Go's own library.
func (b *releaseBuild) linkedModules() ([]*linkedModule, error) {
	modules := map[string]*linkedModule{}
	for _, arch := range []string{"amd64", "arm64", "arm"} {
		args := []string{"list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}\t{{end}}{{end}}{{if .Module}}{{if not .Module.Main}}{{.Dir}}{{end}}{{end}}"}
		for _, program := range b.programs() {
			args = append(args, b.mains[program])
		}
		cmd := b.command("go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		for line := range strings.Lines(string(out)) {
			fields := strings.Split(strings.TrimSpace(line), "\t")
			if len(fields) != 4 {
				continue
			}
			m := modules[fields[0]]
			if m == nil {
				m = &linkedModule{path: fields[0], version: fields[1], dir: fields[2]}
				modules[fields[0]] = m
			}
			m.packages = append(m.packages, fields[3])
		}
	}
	goroot, err := b.command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	modules["std"] = &linkedModule{path: "std", version: runtime.Version(), dir: strings.TrimSpace(string(goroot))}
	list := slices.SortedFunc(maps.Values(modules), func(x, y *linkedModule) int { return strings.Compare(x.path, y.path) })
	for _, m := range list {
		err = errors.Join(err, m.readLicences())
	}
	return list, err
}

// readLicences reads the files of a module, and of its packages where they have their own.
func (m *linkedModule) readLicences() error {
	m.files = map[string]string{}
	for _, dir := range slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(m.packages), m.dir)))) {
		for ; strings.HasPrefix(dir, m.dir); dir = filepath.Dir(dir) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				return err
			}
			for _, e := range entries {
				if err := m.readLicence(dir, e); err != nil {
					return err
				}
			}
		}
	}
	slices.Sort(m.licences)
	m.licences = slices.Compact(m.licences)
	if len(m.licences) == 0 {
		return fmt.Errorf("%s: no licence that is known was found in %s", m.path, m.dir)
	}
	return nil
}

func (m *linkedModule) readLicence(dir string, e fs.DirEntry) error {
	chosen := chosenLicences[m.path]
	if e.IsDir() || chosen == "" && (!licenceFile.MatchString(e.Name()) || path.Ext(e.Name()) == ".go") || chosen != "" && e.Name() != chosen {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(dir, e.Name()))
	if err != nil {
		return err
	}
	m.files[strings.TrimPrefix(strings.TrimPrefix(dir, m.dir)+"/"+e.Name(), "/")] = string(text)
	for _, match := range licensecheck.Scan(text).Match {
		if match.ID != "Google-Patents" && match.ID != "GooglePatentsFile" && !match.IsURL {
			m.licences = append(m.licences, match.ID)
		}
	}
	return nil
}

// licenceLines is the list as it is embedded: a line for each module. Versions are those of go.mod.
func licenceLines(list []*linkedModule) []byte {
	var out bytes.Buffer
	for _, m := range list {
		fmt.Fprintf(&out, "%s\t%s\n", m.path, strings.Join(m.licences, " AND "))
	}
	return out.Bytes()
}

// notice is the text that comes with the programs: each licence, and what is under it. A text that several modules have comes once.
func (b *releaseBuild) notice() ([]byte, error) {
	b.noticeOnce.Do(func() { b.noticeText, b.noticeErr = b.readNotice() })
	return b.noticeText, b.noticeErr
}

func (b *releaseBuild) readNotice() ([]byte, error) {
	list, err := b.linkedModules()
	if err != nil {
		return nil, err
	}
	under := map[string][]string{}
	var texts []string
	for _, m := range list {
		for _, name := range slices.Sorted(maps.Keys(m.files)) {
			text := strings.TrimSpace(m.files[name])
			if under[text] == nil {
				texts = append(texts, text)
			}
			under[text] = append(under[text], fmt.Sprintf("%s %s (%s)", m.path, m.version, name))
		}
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "Edgebus %s\nCopyright 2026 the Edgebus authors, under the Apache License 2.0.\n\nThe programs have parts of the modules below, under these licences.\n", b.version)
	for _, text := range texts {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(under[text], "\n"), text)
	}
	return out.Bytes(), nil
}

// makeNotices writes the list, and the text for whoever asks for it.
func makeNotices(b *releaseBuild) error {
	list, err := b.linkedModules()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.root, licenceList), licenceLines(list), 0o644)
}
