// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/client"
)

// applyRanks is the order in which kinds are applied; others have rank 0. Deleting goes the other way. The hub accepts
// objects in any order, but Devices and Rules work at once if what they need exists.
var applyRanks = map[string]int{"Namespace": -4, "Secret": -3, "ConfigMap": -3, "DeviceModel": -2, "Repository": -2, "Node": -1, "Device": 1, "Rule": 1}

// manifest is an object in a file.
type manifest struct {
	object client.Object
	where  string // file and document
	err    error  // why it can't be read; client.ErrGenerateName: it has no name
	// warning is what of its document is there, and doesn't count.
	warning string
}

func (m manifest) String() string {
	if m.object.Kind == "" {
		return m.where
	}
	return fmt.Sprintf("%s (%s %s)", m.where, m.object.Kind, m.object.Metadata.Name)
}

// readManifests reads files, directories and - for standard input. A file that can't be read is an error; a document
// that is no object is a manifest with an error.
func readManifests(paths []string, recursive bool, stdin io.Reader) (all []manifest, err error) {
	for _, path := range paths {
		if strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://") {
			return nil, exitcode.Errorf(exitcode.Misused, "%s: manifests are files, directories or - for standard input; get it with curl and pipe it here", path)
		}
		if path == "-" {
			text, err := io.ReadAll(stdin)
			if err != nil {
				return nil, err
			}
			all = append(all, parseManifests("standard input", text)...)
			continue
		}
		files, err := manifestFiles(path, recursive)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			all = append(all, parseManifests(file, text)...)
		}
	}
	if len(all) == 0 {
		return nil, exitcode.Errorf(exitcode.Misused, "there are no objects in %s", strings.Join(paths, ", "))
	}
	return all, nil
}

// manifestFiles are the files that a path means.
func manifestFiles(path string, recursive bool) (files []string, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("-f %s: there is no such file or directory here", path)
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	err = filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != path && !recursive:
			return fs.SkipDir
		case !d.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)):
			files = append(files, file)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		advice := ""
		if !recursive {
			advice = "; -R includes its subdirectories"
		}
		err = exitcode.Errorf(exitcode.Misused, "there are no .yaml, .yml or .json files in %s%s", path, advice)
	}
	return files, err
}

func parseManifests(file string, text []byte) (all []manifest) {
	documents := client.Documents(text)
	for _, d := range documents {
		where := file
		if len(documents) > 1 {
			where = fmt.Sprintf("%s document %d", file, d.Number)
		}
		if d.Err != nil {
			all = append(all, manifest{where: where, err: d.Err})
		}
		for _, o := range d.Objects {
			m := manifest{object: o, where: where, warning: d.Warning}
			if o.Metadata.Name == "" {
				m.err = client.ErrGenerateName
			}
			all = append(all, m)
		}
	}
	return all
}

// groupByRank sorts manifests by rank, and returns a group for each rank.
func groupByRank(all []manifest, backwards bool) (groups [][]manifest) {
	sign := 1
	if backwards {
		sign = -1
	}
	slices.SortStableFunc(all, func(a, b manifest) int {
		return sign * cmp.Compare(applyRanks[a.object.Kind], applyRanks[b.object.Kind])
	})
	for i, m := range all {
		if i == 0 || applyRanks[all[i-1].object.Kind] != applyRanks[m.object.Kind] {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], m)
	}
	return groups
}

// manifestNamespace is the namespace of a manifest's object.
func manifestNamespace(h *access.Hub, k client.Kind, o client.Object) (namespace string, err error) {
	if !k.Namespaced {
		return "", nil
	}
	if own := o.Metadata.Namespace; own != "" {
		if h.NamespaceGiven && own != h.Namespace {
			return "", exitcode.Errorf(exitcode.Misused, "it is in namespace %s, and --namespace says %s", own, h.Namespace)
		}
		return own, nil
	}
	return h.Namespace, nil
}
