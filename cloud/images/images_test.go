// SPDX-License-Identifier: Apache-2.0

package images

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

func TestMap(t *testing.T) {
	to := func(image string) string { return "<" + image + ">" }
	for name, c := range map[string]struct{ kind, path, text, want string }{
		"quadlet": {
			"quadlet", "a.container", "[Unit]\nImage=quay.io/a\n[Container]\n Image = quay.io/a:1\nExec=x\n",
			"[Unit]\nImage=quay.io/a\n[Container]\nImage=<quay.io/a:1>\nExec=x\n",
		},
		"not a unit with an image":    {"quadlet", "a.pod", "[Container]\nImage=quay.io/a:1", ""},
		"a short name":                {"quadlet", "a.container", "[Container]\nImage=nginx", ""},
		"of the node":                 {"quadlet", "a.container", "[Container]\nImage=localhost/a:1", ""},
		"another unit":                {"quadlet", "a.container", "[Container]\nImage=a.image", ""},
		"a specifier":                 {"quadlet", "a.container", "[Container]\nImage=quay.io/%i", ""},
		"compose":                     {"compose", "compose.yaml", "services:\n  a:\n    image: \"quay.io/a:1\" # quay.io/a:1\n", "services:\n  a:\n    image: \"<quay.io/a:1>\" # quay.io/a:1\n"},
		"compose on one line":         {"compose", "compose.yml", "{services: {a: {image: h:5/a}, b: {image: h:5/b}}}", "{services: {a: {image: <h:5/a>}, b: {image: <h:5/b>}}}"},
		"compose with merges":         {"compose", "compose.yaml", "x: &x {image: h:5/a}\nservices:\n  a: {<<: *x}\n  b: {<<: [*x]}\n", "x: &x {image: <h:5/a>}\nservices:\n  a: {<<: *x}\n  b: {<<: [*x]}\n"},
		"compose that builds":         {"compose", "compose.yaml", "services: {a: {build: ., image: h:5/a}}", ""},
		"compose with a variable":     {"compose", "compose.yaml", "services: {a: {image: 'h:5/a:${TAG}'}}", ""},
		"compose that is no YAML":     {"compose", "compose.yaml", "services: [", ""},
		"another file of a compose":   {"compose", "config.yaml", "services: {a: {image: h:5/a}}", ""},
		"compose that lacks services": {"compose", "compose.yaml", "services:\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			apps := []resource.Application{{AppType: c.kind, Files: []resource.InlineFile{{Path: c.path, Content: c.text}}}}
			if c.want == "" {
				c.want = c.text
			}
			require.Equal(t, c.want, MapImages(apps, to)[0].Files[0].Content)
			require.Equal(t, c.text, apps[0].Files[0].Content)
		})
	}
}

func FuzzMap(f *testing.F) {
	f.Add("services: {a: &x {image: h:5/a}, b: *x}", "[Container]\nImage=h:5/a")
	f.Fuzz(func(_ *testing.T, compose, quadlet string) {
		MapImages([]resource.Application{
			{AppType: "compose", Files: []resource.InlineFile{{Path: "compose.yaml", Content: compose}}},
			{AppType: "quadlet", Files: []resource.InlineFile{{Path: "a.container", Content: quadlet}}},
		}, strings.ToUpper)
	})
}
