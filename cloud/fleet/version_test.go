// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/blobs"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestATemplateThatChangesIsAnotherVersion(t *testing.T) {
	h := newTestHub(t)
	_, err := objects.Create(t.Context(), h.User, &resource.ConfigMap{Metadata: resource.Meta{Name: "m", Namespace: "default"}, Data: map[string]string{"a": "1"}})
	require.NoError(t, err)
	h.makeNode("n1", "site=a", "room=hall")
	h.makeNode("n2", "site=a")
	h.makeFleet("a", "site=a", "{{ .metadata.labels.room }}")
	h.untilMotd("n1", "hall")
	h.until("the other node lacks the label", func() bool {
		r := h.fleet("a").Status.Rollout
		return r != nil && r.Updated == 1 && r.FailedNodes == 1 &&
			strings.Contains(r.Message, `spec.config[0].files[0].content: node n2: map has no entry for key "room"`)
	})
	h.editFleet("a", func(f *resource.Fleet) { // a label that makes a spec which no node may have is its node's fault alone
		f.Spec.Template.Spec = motdSpec("three")
		f.Spec.Template.Spec.Config[0].Files[0].Path = `/{{ getOrDefault .metadata.labels "room" "../x" }}`
	})
	h.untilMotd("n1", "three")
	h.until("the other node's path is refused", func() bool {
		return strings.Contains(h.fleet("a").Status.Rollout.Message, "spec.config[0].files[0].path")
	})
	h.editFleet("a", func(f *resource.Fleet) {
		f.Spec.Template.Spec = motdSpec("two")
		f.Spec.Template.Spec.Config = append(f.Spec.Template.Spec.Config, resource.ConfigItem{
			Name: "m", ConfigType: resource.ConfigMapRef, ConfigMapRef: &resource.ConfigMapMount{Name: "m", MountPath: "/etc/m"},
		})
	})
	frozen := func(node string) string {
		c := h.node(node).Spec.Config
		if len(c) < 2 || len(c[1].Files) == 0 {
			return ""
		}
		return c[1].Files[0].Path + " " + c[1].Files[0].Digest
	}
	for _, n := range []string{"n1", "n2"} {
		h.until("the ConfigMap is frozen", func() bool { return frozen(n) == "/etc/m/a "+resource.DigestOf([]byte("1")) })
	}
	h.until("it is rolled out", func() bool {
		return h.node("n1").Metadata.Annotations["fleet-controller/templateVersion"] == "a-0000003" && h.fleet("a").Status.Rollout.Updated == 2
	})
	require.Equal(t, "a-0000003", h.fleet("a").Metadata.Annotations["fleet-controller/templateVersion"])

	err = objects.Update(t.Context(), h.User, store.Key{Kind: resource.KindConfigMap, Namespace: "default", Name: "m"}, func(m *resource.ConfigMap) error {
		m.Data["a"] = "2"
		return nil
	})
	require.NoError(t, err)
	for _, n := range []string{"n1", "n2"} { // 32
		h.until("the changed ConfigMap has a version of its own", func() bool { return frozen(n) == "/etc/m/a "+resource.DigestOf([]byte("2")) })
	}

	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec.Config[1].ConfigMapRef.Name = "nosuch" }) // 33
	h.until("it says what is missing", func() bool {
		return strings.HasPrefix(conditionStatus(h.fleet("a").Status.Conditions, "TemplateResolved"), "False") &&
			strings.Contains(conditionStatus(h.fleet("a").Status.Conditions, "TemplateResolved"), "nosuch")
	})
	require.Equal(t, "a-0000004", h.fleet("a").Metadata.Annotations["fleet-controller/templateVersion"])
	digests := map[string]bool{}
	require.NoError(t, blobs.ReferenceFinder{Reader: h.Store}.Refs(t.Context(), func(d string) { digests[d] = true }))
	require.True(t, digests[resource.DigestOf([]byte("1"))] && digests[resource.DigestOf([]byte("2"))])

	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("{{ range .metadata.labels }}{{ end }}") })
	h.until("it says what is wrong", func() bool {
		return strings.Contains(conditionStatus(h.fleet("a").Status.Conditions, "TemplateResolved"), "range and template are not supported")
	})
	for i := range 14 {
		h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec(fmt.Sprint(i)) })
		h.untilMotd("n1", fmt.Sprint(i))
		h.until("it is rolled out", func() bool { return h.fleet("a").Status.Rollout.Updated == 2 })
	}
	h.until("old versions are deleted", func() bool { // 36
		n := 0
		for _, err := range objects.List[resource.TemplateVersion](t.Context(), h.User, "") {
			require.NoError(t, err)
			n++
		}
		return n <= 13
	})
}

// What a template refers to is frozen also if there is no node yet, and if it is empty.
func TestContentsOfReferencesAreFrozen(t *testing.T) {
	h := newTestHub(t)
	m := &resource.ConfigMap{Metadata: resource.Meta{Name: "m", Namespace: "default"}}
	_, err := objects.Create(t.Context(), h.User, m)
	require.NoError(t, err)
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) {
		f.Spec.Template.Spec.Config = append(f.Spec.Template.Spec.Config, resource.ConfigItem{
			Name: "m", ConfigType: resource.ConfigMapRef, ConfigMapRef: &resource.ConfigMapMount{Name: "m", MountPath: "/etc/m"},
		})
	})
	version := func(name string) (v *resource.TemplateVersion) {
		h.until("there is "+name, func() (ok bool) {
			v, err = objects.Get[resource.TemplateVersion](t.Context(), h.User, store.Key{Name: name})
			return err == nil
		})
		return v
	}
	require.Len(t, version("a-0000001").Spec.References, 1)
	h.makeNode("n1", "site=a")
	h.untilMotd("n1", "one") // and nothing else: the ConfigMap is empty
	err = objects.Update(t.Context(), h.User, store.Key{Kind: resource.KindConfigMap, Namespace: "default", Name: "m"}, func(m *resource.ConfigMap) error {
		m.Data = map[string]string{"a": "1"}
		return nil
	})
	require.NoError(t, err)
	require.Len(t, version("a-0000002").Spec.References[0].Files, 1)
	h.until("it is frozen", func() bool { c := h.node("n1").Spec.Config; return len(c) == 2 && len(c[1].Files) == 1 })

	h.makeNode("n2", "site=b") // nothing is wanted of a new node: it has that at once
	h.makeFleet("b", "site=b", "", func(f *resource.Fleet) { f.Spec.Template.Spec = resource.NodeSpec{} })
	h.until("all have nothing", func() bool { r := h.fleet("b").Status.Rollout; return r != nil && r.Updated == 1 })

	blob := func(i int) string { return resource.DigestOf([]byte{byte(i)}) }
	h.makeFleet("c", "site=c", "", func(f *resource.Fleet) {
		f.Spec.Template.Spec.Config[0].Files = []resource.InlineFile{{Path: "/x", Digest: blob(1), Size: 1}}
		f.Spec.Template.Spec.Applications = []resource.Application{{Name: "x", AppType: "quadlet", Files: []resource.InlineFile{{Path: "x.container", Digest: blob(2), Size: 1}}}}
	})
	used := map[string]bool{}
	require.NoError(t, blobs.ReferenceFinder{Reader: h.Store}.Refs(t.Context(), func(d string) { used[d] = true }))
	require.True(t, used[blob(1)] && used[blob(2)])
}

// Images of applications are frozen; the registry's password is tried again when its Secret has changed.
func TestImagesAreFrozen(t *testing.T) {
	h := newTestHub(t)
	h.stop()
	h.poll = time.Hour
	h.start()
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "right" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	ref, err := name.ParseReference(host + "/app:1")
	require.NoError(t, err)
	image, err := random.Image(100, 1)
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, image, remote.WithAuth(&authn.Basic{Username: "u", Password: "right"})))
	digest, err := image.Digest()
	require.NoError(t, err)

	secret := &resource.Secret{Metadata: resource.Meta{Name: "s", Namespace: "default"}, Data: map[string][]byte{"username": []byte("u"), "password": []byte("wrong")}}
	_, err = objects.Create(t.Context(), h.User, secret)
	require.NoError(t, err)
	_, err = objects.Create(t.Context(), h.User, &resource.Repository{
		Metadata: resource.Meta{Name: "r"}, Spec: resource.RepositorySpec{URL: server.URL, Type: "oci", SecretRef: &resource.SecretRef{Name: "s"}},
	})
	require.NoError(t, err)
	h.makeNode("n1", "site=a")
	h.makeFleet("a", "site=a", "", func(f *resource.Fleet) {
		f.Spec.Template.Spec = resource.NodeSpec{Applications: []resource.Application{
			{Name: "q", AppType: "quadlet", Files: []resource.InlineFile{{Path: "q.container", Content: "[Container]\nImage=" + host + "/app:1\n"}}},
			{Name: "c", AppType: "compose", Files: []resource.InlineFile{{Path: "compose.yaml", Content: "services: {a: {image: '" + host + "/app:1'}}"}}},
		}}
	})
	h.until("the password is wrong", func() bool {
		r, err := objects.Get[resource.Repository](t.Context(), h.User, store.Key{Name: "r"})
		require.NoError(t, err)
		return conditionStatus(h.fleet("a").Status.Conditions, "TemplateResolved") != "" && strings.HasPrefix(conditionStatus(r.Status.Conditions, "Accessible"), "False")
	})
	err = objects.Update(t.Context(), h.User, store.Key{Kind: resource.KindSecret, Namespace: "default", Name: "s"}, func(s *resource.Secret) error {
		s.Data["password"] = []byte("right")
		return nil
	})
	require.NoError(t, err)
	h.until("the images are frozen", func() bool {
		apps := h.node("n1").Spec.Applications
		return len(apps) == 2 && apps[0].Files[0].Content == "[Container]\nImage="+host+"/app@"+digest.String()+"\n" &&
			apps[1].Files[0].Content == "services: {a: {image: '"+host+"/app@"+digest.String()+"'}}"
	})
	h.until("the Repository says so", func() bool {
		r, err := objects.Get[resource.Repository](t.Context(), h.User, store.Key{Name: "r"})
		require.NoError(t, err)
		return strings.HasPrefix(conditionStatus(r.Status.Conditions, "Accessible"), "True")
	})
}

// A version that halts is rolled back if the policy says so, and any is if somebody says so; the next one goes out as usual.
func TestVersionsAreRolledBack(t *testing.T) {
	h := newTestHub(t)
	for i := range 4 {
		h.makeNode(fmt.Sprintf("n%d", i), "site=a")
	}
	has := func(version, from, text string) {
		h.until("all have "+version, func() bool {
			r := h.fleet("a").Status.Rollout
			if r == nil || r.TemplateVersion != version || r.RolledBackFrom != from || r.Updated != 4 {
				return false
			}
			for i := range 4 {
				n := h.node(fmt.Sprintf("n%d", i))
				if n.Spec.Config[0].Files[0].Content != text || n.Metadata.Annotations["fleet-controller/templateVersion"] != version {
					return false
				}
			}
			return true
		})
	}
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{SuccessThreshold: "100%", OnFailure: resource.OnFailureRollBack}
	})
	has("a-0000001", "", "one")
	h.fail.Store("n1", "two")
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("two") })
	has("a-0000001", "a-0000002", "one")
	h.until("there is an event", func() bool { return h.recorded("RolledBack") == 1 })
	h.stop()
	h.start()
	h.makeNode("n4", "site=b")
	has("a-0000001", "a-0000002", "one")
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("three") })
	has("a-0000003", "", "three")

	h.editFleet("a", func(f *resource.Fleet) { f.Metadata.Annotations[resource.RollBackAnnotation] = "a-0000001" })
	has("a-0000001", "a-0000003", "one")
	h.editFleet("a", func(f *resource.Fleet) { delete(f.Metadata.Annotations, resource.RollBackAnnotation) })
	has("a-0000003", "", "three")
	h.editFleet("a", func(f *resource.Fleet) { f.Metadata.Annotations[resource.RollBackAnnotation] = "nosuch" })
	has("a-0000003", "", "three")
}

func TestOldVersionsGo(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	versions := func() (names []string) {
		for v, err := range objects.List[resource.TemplateVersion](t.Context(), h.User, "") {
			require.NoError(t, err)
			names = append(names, v.Metadata.Name)
		}
		return names
	}
	two := 2
	h.makeFleet("a", "site=a", "0", func(f *resource.Fleet) { f.Spec.RevisionHistoryLimit = &two })
	for i := range 6 {
		h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec(fmt.Sprint(i)) })
		h.until("it is rolled out", func() bool {
			r := h.fleet("a").Status.Rollout
			return r != nil && r.TemplateVersion == fmt.Sprintf("a-%07d", i+1) && r.FinishedAt != ""
		})
	}
	h.until("two are kept beside the present one and the one before", func() bool { return len(versions()) == 4 })
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.RevisionHistoryAge = "1h" })
	h.ahead.Store(int64(2 * time.Hour))
	h.until("the old ones are gone", func() bool { return slices.Equal(versions(), []string{"a-0000005", "a-0000006"}) })
}

// What nodes have, and what a rollout is undone with, is kept from users; the rest they may delete.
func TestVersionsThatAreNeededAreNotDeletedByUsers(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	h.makeNode("n2", "site=a")
	finished := func(version string) {
		h.until(version+" is rolled out", func() bool {
			r := h.fleet("a").Status.Rollout
			return r != nil && r.TemplateVersion == version && r.FinishedAt != "" &&
				h.node("n1").Metadata.Annotations[resource.VersionAnnotation] == version && h.node("n2").Metadata.Annotations[resource.VersionAnnotation] == version
		})
	}
	remove := func(version string, force bool) error {
		_, err := h.Registry.Delete(t.Context(), store.Key{Kind: resource.KindTemplateVersion, Name: version}, &objects.WriteOptions{Force: force}, nil)
		return err
	}
	h.makeFleet("a", "site=a", "1", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{SuccessThreshold: "100%"}
	})
	for i := range 3 {
		h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec(fmt.Sprint(i + 1)) })
		finished(fmt.Sprintf("a-%07d", i+1))
	}
	refused := func(version, why string) {
		err := remove(version, false)
		require.ErrorIs(t, err, resource.Conflict)
		require.ErrorContains(t, err, why)
	}
	refused("a-0000003", "the nodes n1, n2 have it")
	refused("a-0000002", "undone")
	require.NoError(t, remove("a-0000001", false))

	h.fail.Store("n1", true)
	h.fail.Store("n2", true)
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("4") })
	h.until("it has halted", func() bool {
		r := h.fleet("a").Status.Rollout
		return r.TemplateVersion == "a-0000004" && r.Reason == "Halted"
	})
	refused("a-0000003", "n1, n2") // which have applied it
	require.NoError(t, remove("a-0000002", false))
	h.editFleet("a", func(f *resource.Fleet) { f.Metadata.Annotations[resource.RollBackAnnotation] = "a-0000003" })
	h.untilSpec("n1", "3")
	refused("a-0000003", "n1, n2")
	for _, n := range []string{"n1", "n2"} {
		require.NoError(t, h.User.Delete(h.Context(), store.Key{Kind: resource.KindNode, Name: n}))
	}
	refused("a-0000003", "rolled back to it")
	require.NoError(t, remove("a-0000003", true))
	require.NoError(t, h.User.Delete(h.Context(), store.Key{Kind: resource.KindFleet, Name: "a"}))
	h.until("the fleet is gone, and its versions", func() bool {
		page, err := h.Store.List(t.Context(), resource.KindTemplateVersion, store.ListOptions{})
		require.NoError(t, err)
		return len(page.Items) == 0
	})
}

// Without a policy a rollout ends whatever becomes of its nodes.
func TestAVersionThatNoNodeHasIsNoneToRollBackTo(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	policy := &resource.RolloutPolicy{SuccessThreshold: "100%", OnFailure: resource.OnFailureRollBack}
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) { f.Spec.RolloutPolicy = policy })
	h.until("it is rolled out", func() bool { r := h.fleet("a").Status.Rollout; return r != nil && r.FinishedAt != "" })
	h.fail.Store("n1", "bad")
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.RolloutPolicy, f.Spec.Template.Spec = nil, motdSpec("bad two") })
	h.until("its end is noted", func() bool {
		r := h.fleet("a").Status.Rollout
		return r.TemplateVersion == "a-0000002" && r.FinishedAt != "" && r.FailedNodes == 1
	})
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.RolloutPolicy, f.Spec.Template.Spec = policy, motdSpec("bad three") })
	h.until("it is rolled back", func() bool { return h.fleet("a").Status.Rollout.RolledBackFrom == "a-0000003" })
	require.Equal(t, "a-0000001", h.fleet("a").Status.Rollout.TemplateVersion)
}
