package main

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/client"
)

// ranks say what comes before what is not named here; deleting goes the other way. The hub takes
// objects in any order, but those that others need are better there first.
var ranks = map[string]int{"Namespace": -4, "Secret": -3, "ConfigMap": -3, "DeviceModel": -2, "Repository": -2, "Node": -1, "Device": 1}

// manifest is an object in a file.
type manifest struct {
	object client.Object
	where  string // file and document
	err    error  // why it can't be read
}

func (m manifest) String() string {
	if m.object.Kind == "" {
		return m.where
	}
	return fmt.Sprintf("%s (%s %s)", m.where, m.object.Kind, m.object.Metadata.Name)
}

// readManifests reads files, directories and - for standard input. What can't be found is an error;
// what can't be read as an object is a manifest with one.
func readManifests(paths []string, recursive bool, stdin io.Reader) (all []manifest, err error) {
	for _, path := range paths {
		if strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://") {
			return nil, withCode(misused, "%s: manifests are files, directories or - for standard input; get it with curl and pipe it here", path)
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
		return nil, withCode(misused, "there are no objects in %s", strings.Join(paths, ", "))
	}
	return all, nil
}

// manifestFiles are the files that a path means.
func manifestFiles(path string, recursive bool) (files []string, err error) {
	info, err := os.Stat(path)
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
			advice = "; -R looks into its directories, too"
		}
		err = withCode(misused, "there are no .yaml, .yml or .json files in %s%s", path, advice)
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
			all = append(all, manifest{object: o, where: where})
		}
	}
	return all
}

// inOrder sorts manifests by rank, and splits them into groups whose own order doesn't matter.
func inOrder(all []manifest, backwards bool) (groups [][]manifest) {
	sign := 1
	if backwards {
		sign = -1
	}
	slices.SortStableFunc(all, func(a, b manifest) int {
		return sign * cmp.Compare(ranks[a.object.Kind], ranks[b.object.Kind])
	})
	for i, m := range all {
		if i == 0 || ranks[all[i-1].object.Kind] != ranks[m.object.Kind] {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], m)
	}
	return groups
}

// home is the namespace that a manifest's object belongs to.
func (h *hub) home(k client.Kind, o client.Object) (namespace string, err error) {
	if !k.Namespaced {
		return "", nil
	}
	if own := o.Metadata.Namespace; own != "" {
		if h.given && own != h.namespace {
			return "", withCode(misused, "it is in namespace %s, and --namespace says %s", own, h.namespace)
		}
		return own, nil
	}
	return h.namespace, nil
}
