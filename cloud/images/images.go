// SPDX-License-Identifier: Apache-2.0

// Package images finds the container images in the files of applications: quadlets and compose files. It never asks a registry for one.
package images

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/edgebus/edgebus/topics/resource"
)

// MapImages replaces the images of applications. Files that are given by digest, and those that can't be read, stay as they are.
func MapImages(apps []resource.Application, to func(image string) string) []resource.Application {
	apps = slices.Clone(apps)
	for i, app := range apps {
		apps[i].Files = slices.Clone(app.Files)
		for j, f := range app.Files {
			text, err := f.Bytes()
			if err != nil || f.Digest != "" {
				continue
			}
			next := string(text)
			switch {
			case app.AppType == resource.AppQuadlet && quadletFile.MatchString(f.Path):
				next = mapQuadlet(next, to)
			case app.AppType == resource.AppCompose && composeFile.MatchString(f.Path):
				next = mapCompose(next, to)
			}
			if next != string(text) {
				apps[i].Files[j].Content, apps[i].Files[j].ContentEncoding = next, ""
			}
		}
	}
	return apps
}

// ListImages are the images of applications that Map finds, sorted.
func ListImages(apps []resource.Application) (list []string) {
	MapImages(apps, func(image string) string {
		list = append(list, image)
		return image
	})
	slices.Sort(list)
	return slices.Compact(list)
}

var (
	quadletFile = regexp.MustCompile(`\.(container|image|volume)$`)
	composeFile = regexp.MustCompile(`^(docker-|podman-|container-)?compose(\.override)?\.ya?ml$`)
	// registryImage is an image with its registry. A short name is another image on each node whose engine says so, localhost/
	// is the node's own, and what has a variable in it is known to the node alone.
	registryImage = regexp.MustCompile(`^([A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:[0-9]+)?|[A-Za-z0-9-]+:[0-9]+|\[[0-9a-fA-F:]+\](:[0-9]+)?)/[A-Za-z0-9._/-]+(:[\w.-]+)?(@sha256:[0-9a-f]{64})?$`)
)

// mapQuadlet replaces the values of Image= in the sections of containers, images and volumes.
func mapQuadlet(text string, to func(image string) string) string {
	lines := strings.Split(text, "\n")
	section := ""
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "[") {
			section = trimmed
		}
		key, value, ok := strings.Cut(trimmed, "=")
		if value = strings.TrimSpace(value); ok && strings.TrimSpace(key) == "Image" && registryImage.MatchString(value) &&
			slices.Contains([]string{"[Container]", "[Image]", "[Volume]"}, section) {
			lines[i] = "Image=" + to(value)
		}
	}
	return strings.Join(lines, "\n")
}

// mapCompose replaces the images of services that are not built, where they stand: all else of the file is as it was written.
func mapCompose(text string, to func(image string) string) string {
	var file yaml.Node
	if yaml.Unmarshal([]byte(text), &file) != nil || len(file.Content) == 0 {
		return text
	}
	var images []*yaml.Node
	services := yamlField(file.Content[0], "services")
	for i := 1; services != nil && i < len(services.Content); i += 2 {
		image := yamlField(services.Content[i], "image")
		if image != nil && image.Kind == yaml.ScalarNode && registryImage.MatchString(image.Value) && yamlField(services.Content[i], "build") == nil {
			images = append(images, image)
		}
	}
	// From the end on, so that those before stay where they are. Services may share one by an anchor.
	slices.SortFunc(images, func(a, b *yaml.Node) int { return cmp.Or(cmp.Compare(b.Line, a.Line), cmp.Compare(b.Column, a.Column)) })
	lines := strings.Split(text, "\n")
	for _, n := range slices.Compact(images) {
		line := lines[n.Line-1]
		from := min(len(line), n.Column-1)
		if at := strings.Index(line[from:], n.Value); at >= 0 {
			lines[n.Line-1] = line[:from+at] + to(n.Value) + line[from+at+len(n.Value):]
		}
	}
	return strings.Join(lines, "\n")
}

// yamlField is a field of a mapping, or of one that is merged into it; nil: there is none. yaml has refused aliases that contain themselves.
func yamlField(n *yaml.Node, name string) *yaml.Node {
	if n = resolveAlias(n); n.Kind != yaml.MappingNode {
		return nil
	}
	var merged *yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch key, value := n.Content[i].Value, resolveAlias(n.Content[i+1]); {
		case key == name:
			return value
		case key == "<<" && value.Kind == yaml.SequenceNode:
			for _, one := range value.Content {
				merged = cmp.Or(merged, yamlField(one, name))
			}
		case key == "<<":
			merged = cmp.Or(merged, yamlField(value, name))
		}
	}
	return merged
}

// resolveAlias is what an alias stands for.
func resolveAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}
