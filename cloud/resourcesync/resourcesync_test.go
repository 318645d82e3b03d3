// SPDX-License-Identifier: Apache-2.0

package resourcesync_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/blobs"
	"github.com/edgebus/edgebus/cloud/fleet"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/resourcesync"
	"github.com/edgebus/edgebus/cloud/sources"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/test/controltest"
	"github.com/edgebus/edgebus/test/sourcestest"
	"github.com/edgebus/edgebus/topics/resource"
)

const waitTimeout = 30 * time.Second

// testHub is a store with the controllers of sources and ResourceSyncs, and a repository that git itself serves.
type testHub struct {
	*controltest.Hub
	git *sourcestest.Git
}

// commit makes the repository have these files, and no others.
func (h *testHub) commit(files map[string]string) {
	h.Helper()
	require.NoError(h, os.RemoveAll(filepath.Join(h.git.Dir, "fleets")))
	for name, text := range files {
		h.git.Write("fleets/"+name, text, 0o600)
	}
	h.git.Commit()
}

func newTestHub(t *testing.T) *testHub {
	t.Helper()
	h := &testHub{git: sourcestest.NewGit(t)}
	h.Hub = controltest.New(t, func(o *objects.Options) {
		o.NodeReferences = []func(context.Context, resource.Meta) ([]objects.Reference, error){fleet.NodeReferences(o.Reader)}
	})
	content, err := blobs.Open(blobs.Options{Dir: h.Dir, Log: zerolog.Nop()})
	require.NoError(t, err)
	src := sources.NewResolver(sources.ResolverOptions{
		Client:  sources.New(sources.Options{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Timeout: 10 * time.Second}),
		Objects: h.Controller("sources"), Reader: h.Store, Writer: h.Store, Blobs: content, Interval: 100 * time.Millisecond,
	})
	c := resourcesync.NewController(resourcesync.Options{Objects: h.Registry, Reader: h.Store, Sources: src, Content: content.ReadAt, Interval: 200 * time.Millisecond})
	h.Run(prometheus.NewRegistry(), append(src.Controllers(), c)...)
	_, err = objects.Create(t.Context(), h.User, &resource.Repository{Metadata: resource.Meta{Name: "config"}, Spec: resource.RepositorySpec{URL: h.git.Serve()}})
	require.NoError(t, err)
	return h
}

func (h *testHub) sync(name, path string) {
	h.Helper()
	_, err := objects.Create(h.Context(), h.User, &resource.ResourceSync{
		Metadata: resource.Meta{Name: name}, Spec: resource.ResourceSyncSpec{Repository: "config", TargetRevision: "main", Path: path},
	})
	require.NoError(h, err)
}

// conditions are those of a ResourceSync: their types, statuses, reasons and messages.
func (h *testHub) conditions(name string) (text string) {
	rs, err := objects.Get[resource.ResourceSync](h.Context(), h.User, store.Key{Name: name})
	require.NoError(h, err)
	for _, c := range rs.Status.Conditions {
		text += c.Type + "=" + c.Status + " " + c.Reason + ": " + c.Message + "\n"
	}
	return text
}

func (h *testHub) untilSays(name, text string) {
	h.Helper()
	ok := false
	for end := time.Now().Add(waitTimeout); time.Now().Before(end) && !ok; time.Sleep(5 * time.Millisecond) {
		ok = strings.Contains(h.conditions(name), text)
	}
	require.True(h, ok, "%s, not %s", h.conditions(name), text)
}

func (h *testHub) fleet(name string) *resource.Fleet {
	f, err := objects.Get[resource.Fleet](h.Context(), h.User, store.Key{Name: name})
	if err != nil {
		return nil
	}
	return f
}

func (h *testHub) until(what string, is func() bool) {
	h.Helper()
	require.Eventually(h, is, waitTimeout, 5*time.Millisecond, what)
}

// fleetManifest is a manifest of flightctl.
func fleetManifest(name, image, labels string) string {
	return fmt.Sprintf("apiVersion: flightctl.io/v1beta1\nkind: Fleet\nmetadata: {name: %s, labels: {%s}}\nspec: {selector: {matchLabels: {site: x}}, template: {spec: {os: {image: %q}}}}\n", name, labels, image)
}

func TestManifestsAreAppliedAndPruned(t *testing.T) {
	h := newTestHub(t)
	_, err := objects.Create(t.Context(), h.User, &resource.Fleet{Metadata: resource.Meta{Name: "byhand"}})
	require.NoError(t, err)
	device := "apiVersion: edgebus.io/v1alpha1\nkind: ConfigMap\nmetadata: {name: motd}\ndata: {motd: hello}\n"
	configMap := strings.Replace(device, "edgebus.io/v1alpha1", "v1", 1)
	h.commit(map[string]string{
		"a.yaml": fleetManifest("a", "r.example/os:1", "team: one") + "---\n" + fleetManifest("b", "r.example/os:1", ""), "below/map.yml": configMap, "README.md": "nothing: [",
	})
	h.sync("s", "/fleets")
	h.untilSays("s", "Synced=True Synced: 3 objects are as commit")
	require.Contains(t, h.conditions("s"), "Accessible=True")
	require.Contains(t, h.conditions("s"), "ResourceParsed=True")
	a := h.fleet("a")
	require.Equal(t, "ResourceSync/s", a.Metadata.Owner)
	require.Equal(t, "r.example/os:1", a.Spec.Template.Spec.OS.Image)
	m, err := objects.Get[resource.ConfigMap](t.Context(), h.User, store.Key{Namespace: "default", Name: "motd"})
	require.NoError(t, err)
	require.Equal(t, "hello", m.Data["motd"])
	require.Equal(t, "ResourceSync/s", m.Metadata.Owner)

	// Users' labels stay, those of the manifest go with it. What is not described any more goes, and what users made stays.
	err = objects.Update(t.Context(), h.User, store.Key{Name: "a"}, func(f *resource.Fleet) error { f.Metadata.Labels["mine"] = "yes"; return nil })
	require.NoError(t, err)
	h.commit(map[string]string{"a.yaml": fleetManifest("a", "r.example/os:2", "stage: two")})
	h.until("b is gone", func() bool { return h.fleet("b") == nil })
	a = h.fleet("a")
	require.Equal(t, "r.example/os:2", a.Spec.Template.Spec.OS.Image)
	require.Equal(t, map[string]string{"mine": "yes", "stage": "two"}, a.Metadata.Labels)
	require.NotNil(t, h.fleet("byhand"))
	rs, err := objects.Get[resource.ResourceSync](t.Context(), h.User, store.Key{Name: "s"})
	require.NoError(t, err)
	require.Len(t, rs.Status.ObservedCommit, 40)
	require.EqualValues(t, 1, rs.Status.ObservedGeneration)

	// What is as it should be is not written again, and what somebody deletes comes back.
	revision := a.Metadata.ResourceVersion
	require.NoError(t, h.User.Delete(t.Context(), store.Key{Kind: resource.KindFleet, Name: "a"}))
	h.until("a is back", func() bool { f := h.fleet("a"); return f != nil && f.Metadata.ResourceVersion != revision })
	revision = h.fleet("a").Metadata.ResourceVersion
	h.commit(map[string]string{"a.yaml": fleetManifest("a", "r.example/os:2", "stage: two"), "b.yaml": fleetManifest("b", "r.example/os:1", "")})
	h.until("b is back", func() bool { return h.fleet("b") != nil })
	require.Equal(t, revision, h.fleet("a").Metadata.ResourceVersion)

	// A ResourceSync that is deleted gives up what it owns.
	require.NoError(t, h.User.Delete(t.Context(), store.Key{Kind: resource.KindResourceSync, Name: "s"}))
	h.until("the ResourceSync is gone", func() bool {
		_, err := objects.Get[resource.ResourceSync](t.Context(), h.User, store.Key{Name: "s"})
		return err != nil
	})
	require.Empty(t, h.fleet("a").Metadata.Owner)
	require.Equal(t, map[string]string{"stage": "two"}, h.fleet("a").Metadata.Labels)
	require.Empty(t, h.fleet("a").Metadata.Annotations)
}

// A list, as kubectl and edgebus export write it, has manifests like documents of their own.
func TestTheItemsOfAListAreManifests(t *testing.T) {
	h := newTestHub(t)
	list := func(items ...string) string {
		text := "apiVersion: v1\nkind: List\nmetadata: {resourceVersion: \"\"}\nitems:\n"
		for _, item := range items {
			text += "- " + strings.ReplaceAll(strings.TrimSpace(item), "\n", "\n  ") + "\n"
		}
		return text
	}
	h.commit(map[string]string{
		"all.yaml": list(fleetManifest("a", "r.example/os:1", ""), fleetManifest("b", "r.example/os:1", "")) + "---\n" + fleetManifest("c", "r.example/os:1", ""),
		"own.json": `{"apiVersion": "edgebus.io/v1alpha1", "kind": "FleetList", "metadata": {}, "items": [{"metadata": {"name": "d", "uid": "x", "resourceVersion": "7", "generation": 2, "creationTimestamp": "2026-01-02T03:04:05Z"}, "spec": {}, "status": {"conditions": []}}]}`,
	})
	h.sync("s", "/fleets")
	h.untilSays("s", "Synced=True Synced: 4 objects are as commit")
	for _, name := range []string{"a", "b", "c", "d"} {
		require.NotNil(t, h.fleet(name), name)
	}
	for want, file := range map[string]string{
		`bad.yaml, document 1, items[1]: unknown field "spec.temlate"`:              list(fleetManifest("e", "r.example/os:1", ""), "apiVersion: flightctl.io/v1beta1\nkind: Fleet\nmetadata: {name: f}\nspec: {temlate: {}, template: {spec: {}}}"),
		"bad.yaml, document 1, items[0]: there is no kind List of v1":               list(list(fleetManifest("e", "r.example/os:1", ""))),
		"bad.yaml, document 1, items[0]: metadata.name is required":                 list("apiVersion: edgebus.io/v1alpha1\nkind: Fleet\nmetadata: {}\nspec: {}"),
		"bad.yaml, document 1, items[0]: must be an object, not a string":           list("hello"),
		"bad.yaml, document 1: items: must be a list":                               "apiVersion: v1\nkind: List\nitems: {}\n",
		"bad.yaml, document 1, items[0]: the Fleet a is also in all.yaml":           list(fleetManifest("a", "r.example/os:2", "")),
		"bad.yaml, document 1: there is no kind List of v1":                         "apiVersion: v1\nkind: List\n",
		"bad.yaml, document 1, items[0]: a Secret is not applied from a repository": list("apiVersion: v1\nkind: Secret\nmetadata: {name: b}"),
	} {
		h.commit(map[string]string{"all.yaml": fleetManifest("a", "r.example/os:9", ""), "bad.yaml": file})
		h.untilSays("s", want)
		require.Equal(t, "r.example/os:1", h.fleet("a").Spec.Template.Spec.OS.Image, "all or nothing is read")
	}
}

// Whoever may push to the repository could have any Secret, and what any Repository contains, sent to a node: manifests refer to them
// only if the ResourceSync allows it. Its own Repository they may refer to.
func TestManifestsReferToWhatIsAllowed(t *testing.T) {
	h := newTestHub(t)
	_, err := objects.Create(t.Context(), h.User, &resource.Repository{Metadata: resource.Meta{Name: "theirs"}, Spec: resource.RepositorySpec{
		Type: "oci", URL: "oci://private.example", Credentials: map[string][]byte{"token": []byte("x")},
	}})
	require.NoError(t, err)
	of := func(kind, spec string) string {
		return "apiVersion: edgebus.io/v1alpha1\nkind: " + kind + "\nmetadata: {name: b}\nspec: " + spec + "\n"
	}
	config := func(item string) string {
		return "{config: [{name: c, " + item + "}]}"
	}
	fleet := func(spec string) string { return of("Fleet", "{template: {spec: "+spec+"}}") }
	secret := config("configType: KubernetesSecretProviderSpec, secretRef: {name: wifi, mountPath: /etc/wifi}")
	property := of("Configuration", "{discoveryHandler: {name: onvif, discoveryProperties: [{name: p, valueFrom: {secretKeyRef: {name: wifi, key: k}}}]}}")
	own := fleet(config("configType: GitConfigProviderSpec, gitRef: {repository: config, targetRevision: main, path: /x}"))
	public := fleet("{os: {image: \"private.example/os:1\"}, applications: [{name: a, appType: compose, image: \"public.example/a:1\"}]}")
	h.commit(map[string]string{"a.yaml": fleetManifest("a", "r.example/os:1", ""), "b.yaml": own, "c.yaml": strings.Replace(public, "name: b", "name: c", 1)})
	h.sync("s", "/fleets")
	h.untilSays("s", "Synced=True Synced: 3 objects")
	allow := func(kinds ...string) {
		err := objects.Update(t.Context(), h.User, store.Key{Name: "s"}, func(r *resource.ResourceSync) error { r.Spec.Allow = kinds; return nil })
		require.NoError(t, err)
	}
	for i, c := range []struct{ kind, field, file string }{
		{"Secret wifi", "spec.config[c].secretRef", of("Node", secret)},
		{"Secret wifi", "spec.template.spec.config[c].secretRef", fleet(secret)},
		{"Secret other", "spec.template.spec.config[c].secretRef", strings.NewReplacer("edgebus.io/v1alpha1", "flightctl.io/v1beta1", "spec: {template", "spec: {selector: {matchLabels: {a: b}}, template", "name: wifi", "name: other").Replace(fleet(secret))},
		{"Secret wifi", "spec.discoveryHandler.discoveryProperties[p].valueFrom.secretKeyRef", property},
		{"Repository other", "spec.config[c].gitRef", of("Node", config("configType: GitConfigProviderSpec, gitRef: {repository: other, targetRevision: main, path: /x}"))},
		{"Repository other", "spec.template.spec.config[c].httpRef", fleet(config("configType: HttpConfigProviderSpec, httpRef: {repository: other, filePath: /x}"))},
		{"Repository theirs", "spec.template.spec.config[c].ociRef", fleet(config("configType: OciConfigProviderSpec, ociRef: {image: \"private.example/a/b:1\", mountPath: /x}"))},
		{"Repository theirs", "spec.template.spec.applications[a].image", fleet("{applications: [{name: a, appType: compose, image: \"private.example/a:1\"}]}")},
		{"Repository theirs", "spec.template.spec.config[c].ociRef", fleet(config("configType: OciConfigProviderSpec, ociRef: {image: \"{{ lower \\\"PRIVATE.example/a\\\" }}:1\", mountPath: /x}"))},
	} {
		kind, _, _ := strings.Cut(c.kind, " ")
		other := map[string]string{"Secret": "Repository", "Repository": "Secret"}[kind]
		allow(other)
		version := fmt.Sprintf("r.example/os:%d", i+2)
		h.commit(map[string]string{"a.yaml": fleetManifest("a", version, ""), "b.yaml": c.file})
		h.untilSays("s", "ResourceParsed=False NotAllowed: b.yaml, document 1: "+c.field+" refers to the "+c.kind+", and spec.allow of the ResourceSync lists no "+kind)
		require.NotEqual(t, version, h.fleet("a").Spec.Template.Spec.OS.Image, "nothing is applied")
		allow(kind)
		h.until("it is applied", func() bool { return h.fleet("a").Spec.Template.Spec.OS.Image == version })
		h.untilSays("s", "ResourceParsed=True")
	}
	err = objects.Update(t.Context(), h.User, store.Key{Name: "s"}, func(r *resource.ResourceSync) error { r.Spec.Allow = []string{"Fleet"}; return nil })
	require.ErrorContains(t, err, `spec.allow[0]: "Fleet" is not one of Secret, Repository`)
}

// Objects of others are left alone, and the rest is applied; what is wrong with a manifest is a condition, and nothing is deleted.
// A label is as good as a reference, if a fleet that matches it has one.
func TestAManifestsLabelsBringNoSecrets(t *testing.T) {
	h := newTestHub(t)
	f := &resource.Fleet{Metadata: resource.Meta{Name: "hq"}, Spec: resource.FleetSpec{Selector: &resource.LabelSelector{MatchLabels: map[string]string{"site": "hq"}}}}
	f.Spec.Template.Spec.Config = []resource.ConfigItem{{Name: "x", ConfigType: resource.ConfigSecret, SecretRef: &resource.SecretMount{Name: "vpn", MountPath: "/srv"}}}
	_, err := objects.Create(t.Context(), h.User, f)
	require.NoError(t, err)
	node := func(labels string) string {
		return "apiVersion: edgebus.io/v1alpha1\nkind: Node\nmetadata: {name: n1, labels: {" + labels + "}, annotations: {edgebus.io/joined: x, mine: own}}\nspec: {}\n"
	}
	h.commit(map[string]string{"n.yaml": node("site: hq")})
	h.sync("s", "/fleets")
	h.untilSays("s", "the Fleet hq matches, and its spec.template.spec.config[x].secretRef refers to the Secret vpn, and spec.allow of the ResourceSync lists no Secret")
	h.commit(map[string]string{"n.yaml": node("site: x")})
	h.untilSays("s", "Synced=True")
	n, err := objects.Get[resource.Node](t.Context(), h.User, store.Key{Name: "n1"})
	require.NoError(t, err)
	require.Equal(t, "own", n.Metadata.Annotations["mine"])
	require.NotContains(t, n.Metadata.Annotations, "edgebus.io/joined", "that is for controllers")
}

func TestWhatCannotBeApplied(t *testing.T) {
	h := newTestHub(t)
	_, err := objects.Create(t.Context(), h.User, &resource.Fleet{Metadata: resource.Meta{Name: "theirs"}})
	require.NoError(t, err)
	h.commit(map[string]string{"a.yaml": fleetManifest("a", "r.example/os:1", ""), "theirs.yaml": fleetManifest("theirs", "r.example/os:1", "")})
	h.sync("s", "/fleets")
	h.untilSays("s", "Synced=False OwnedByOthers: theirs.yaml, document 1: there is a Fleet theirs that is not of this ResourceSync")
	require.NotNil(t, h.fleet("a"))
	require.Nil(t, h.fleet("theirs").Spec.Template.Spec.OS)
	h.sync("other", "/fleets/a.yaml")
	h.untilSays("other", `Synced=False OwnedByOthers: a.yaml, document 1: there is a Fleet a that is not of this ResourceSync (its owner is "ResourceSync/s")`)
	require.NoError(t, h.User.Delete(t.Context(), store.Key{Kind: resource.KindResourceSync, Name: "other"}))

	for want, file := range map[string]string{
		"bad.yaml, document 2: ":                                     fleetManifest("b", "r.example/os:1", "") + "---\na: [\n",
		`bad.yaml, document 1: unknown field "spec.temlate"`:         "apiVersion: flightctl.io/v1beta1\nkind: Fleet\nmetadata: {name: b}\nspec: {temlate: {}, template: {spec: {}}}\n",
		`unknown field "spec.selctor"`:                               "apiVersion: edgebus.io/v1alpha1\nkind: Fleet\nmetadata: {name: b}\nspec: {selctor: {}, template: {spec: {}}}\n",
		"a Secret is not applied from a repository":                  "apiVersion: v1\nkind: Secret\nmetadata: {name: b}\n",
		"a Repository is not applied from a repository":              "apiVersion: flightctl.io/v1beta1\nkind: Repository\nmetadata: {name: b}\nspec: {type: git, url: \"https://x.example/y\"}\n",
		"there is no kind Pod of v1":                                 "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\n",
		"bad.yaml, document 1: must be an object, not a string":      "hello\n",
		"bad.yaml, document 1: metadata.name: must be a string":      "apiVersion: edgebus.io/v1alpha1\nkind: Fleet\nmetadata: {name: 7}\nspec: {template: {spec: {}}}\n",
		"bad.yaml, document 1: spec.paused: must be true or false":   "apiVersion: edgebus.io/v1alpha1\nkind: Fleet\nmetadata: {name: b}\nspec: {paused: \"yes\", template: {spec: {}}}\n",
		"metadata.name is required":                                  "apiVersion: edgebus.io/v1alpha1\nkind: Fleet\nspec: {template: {spec: {}}}\n",
		"bad.yaml, document 1: the Fleet a is also in a.yaml":        fleetManifest("a", "r.example/os:2", ""),
		"ResourceParsed=False Invalid: bad.yaml, document 1: it has": "a: " + strings.Repeat("x", 1<<20),
	} {
		h.commit(map[string]string{"a.yaml": fleetManifest("a", "r.example/os:9", ""), "bad.yaml": file})
		h.untilSays("s", want)
		require.Contains(t, h.conditions("s"), "ResourceParsed=False Invalid: ")
		require.Equal(t, "r.example/os:1", h.fleet("a").Spec.Template.Spec.OS.Image, "all or nothing is read")
	}
	h.commit(map[string]string{"b.yaml": fleetManifest("b", "no image", "")})
	h.untilSays("s", "Synced=False NotApplied: b.yaml, document 1: Fleet b: ")
	require.Contains(t, h.conditions("s"), "spec.template.spec.os.image")
	require.NotNil(t, h.fleet("a"), "nothing is deleted while something can't be applied")
	h.commit(map[string]string{"readme.txt": "nothing"})
	h.untilSays("s", "ResourceParsed=False Invalid: there is no manifest")
	require.NotNil(t, h.fleet("a"))
	h.commit(nil)
	h.untilSays("s", "Accessible=False NotFound: ")
	require.NotNil(t, h.fleet("a"))
	h.commit(map[string]string{"b.yaml": fleetManifest("b", "r.example/os:1", "")})
	h.untilSays("s", "Synced=True")
	require.Nil(t, h.fleet("a"))
	require.NotNil(t, h.fleet("b"))
}

// What was renamed to a name that somebody else has stays under its old one, for nothing takes its place.
func TestNothingIsPrunedWhileSomethingIsNotApplied(t *testing.T) {
	h := newTestHub(t)
	_, err := objects.Create(t.Context(), h.User, &resource.Fleet{Metadata: resource.Meta{Name: "theirs"}})
	require.NoError(t, err)
	h.commit(map[string]string{"a.yaml": fleetManifest("a", "r.example/os:1", "")})
	h.sync("s", "/fleets")
	h.untilSays("s", "Synced=True")
	h.commit(map[string]string{"a.yaml": fleetManifest("theirs", "r.example/os:1", "")})
	h.untilSays("s", "Synced=False OwnedByOthers: a.yaml, document 1: there is a Fleet theirs that is not of this ResourceSync")
	require.NotNil(t, h.fleet("a"))
	h.commit(map[string]string{"a.yaml": fleetManifest("b", "r.example/os:1", "")})
	h.untilSays("s", "Synced=True")
	require.NotNil(t, h.fleet("b"))
	h.until("what was renamed is gone", func() bool { return h.fleet("a") == nil })
}
