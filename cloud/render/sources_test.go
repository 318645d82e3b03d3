// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/test/sourcestest"
	"github.com/edgebus/edgebus/topics/resource"
)

func (r *testHub) repository(name, kind, url string) {
	r.Helper()
	_, err := objects.Create(r.Context(), r.User, &resource.Repository{Metadata: resource.Meta{Name: name}, Spec: resource.RepositorySpec{Type: kind, URL: url}})
	require.NoError(r, err)
}

// content is what a file of a node's rendered spec contains; empty if it is not there.
func (r *testHub) content(node, path string) string {
	r.Helper()
	for _, f := range r.rendered(node).Files {
		if f.Path == path {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.blobs[f.Digest]
		}
	}
	return ""
}

func (r *testHub) untilContent(node, path, text string) {
	r.Helper()
	require.Eventually(r, func() bool { return r.content(node, path) == text }, waitTimeout, 5*time.Millisecond, "%s of %s is %q", path, node, text)
}

// Point 27: what the spec of a node without a fleet refers to is followed: the branch of a repository, what a server answers, and
// the tag of an artifact. While a source can't be read the node keeps what it has, and a condition says why.
func TestSourcesOfATemplateFloat(t *testing.T) {
	r := newTestHub(t)
	r.run()
	var answer atomic.Value
	answer.Store("one")
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if answer.Load() == "" || req.URL.RequestURI() != "/conf/site?v=1" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, answer.Load())
	}))
	defer site.Close()
	r.repository("web", "http", site.URL+"/conf/")
	r.node("n1", resource.NodeSpec{Config: []resource.ConfigItem{{
		Name: "site", ConfigType: resource.ConfigHTTP, HTTPRef: &resource.HTTPRef{Repository: "web", Suffix: "/site?v=1", FilePath: "/etc/site"},
	}}})
	r.untilContent("n1", "/etc/site", "one")
	r.awaitVersion("n1", "1")
	require.Equal(t, "SpecRendered=True:Rendered ReferencesResolved=True:Resolved ", r.await("n1"))
	answer.Store("two")
	r.untilContent("n1", "/etc/site", "two")
	r.awaitVersion("n1", "2")
	answer.Store("")
	untilConditions := func(node, want string) {
		require.Eventually(t, func() bool { return r.await(node) == want }, waitTimeout, 5*time.Millisecond, want)
	}
	untilConditions("n1", "SpecRendered=True:Rendered ReferencesResolved=False:Unauthorized ")
	require.Contains(t, r.status("n1").Conditions[1].Message, "spec.config[site]: ")
	require.Equal(t, "two", r.content("n1", "/etc/site"))
	answer.Store("three")
	r.untilContent("n1", "/etc/site", "three")
	untilConditions("n1", "SpecRendered=True:Rendered ReferencesResolved=True:Resolved ")

	config := sourcestest.NewGit(t)
	commit := func(text string) {
		config.Write("etc/motd", text, 0o600)
		config.Commit()
	}
	commit("one")
	spec := resource.NodeSpec{Config: []resource.ConfigItem{{
		Name: "git", ConfigType: resource.ConfigGit, GitRef: &resource.GitRef{Repository: "config", TargetRevision: "main", Path: "/etc", MountPath: "/opt/x"},
	}}}
	r.node("n2", spec)
	untilConditions("n2", "SpecRendered=False:NotFound ReferencesResolved=False:NotFound ")
	r.repository("config", "git", config.Serve()) // is read at once
	r.untilContent("n2", "/opt/x/motd", "one")
	commit("two")
	r.untilContent("n2", "/opt/x/motd", "two")
	require.Equal(t, "main", func() string {
		n, err := objects.Get[resource.Node](t.Context(), r.User, store.Key{Name: "n2"})
		require.NoError(t, err)
		return n.Spec.Config[0].GitRef.TargetRevision
	}(), "point 7: what floats is stored as it was written")

	at, stop := sourcestest.Registry(t)
	push := func(text string) string {
		artifact, err := mutate.Append(empty.Image, mutate.Addendum{
			Layer: static.NewLayer([]byte(text), "text/plain"), Annotations: map[string]string{"org.opencontainers.image.title": "app.container"},
		})
		require.NoError(t, err)
		ref, err := name.ParseReference(at + "/app:v1")
		require.NoError(t, err)
		require.NoError(t, remote.Write(ref, artifact))
		var digest v1.Hash
		digest, err = artifact.Digest()
		require.NoError(t, err)
		return digest.String()
	}
	digest := push("[Container]\nImage=one\n")
	r.node("n3", resource.NodeSpec{
		OS:           &resource.NodeOS{Image: at + "/app:v1"},
		Config:       []resource.ConfigItem{{Name: "oci", ConfigType: resource.ConfigOCI, OCIRef: &resource.OCIRef{Image: at + "/app:v1", MountPath: "/opt/app"}}},
		Applications: []resource.Application{{Name: "app", AppType: resource.AppQuadlet, Image: at + "/app:v1"}},
	})
	r.untilContent("n3", "/opt/app/app.container", "[Container]\nImage=one\n")
	app := r.rendered("n3").Applications[0]
	require.Equal(t, "app.container", app.Files[0].Path)
	require.Equal(t, at+"/app@"+digest, r.rendered("n3").OS.Image)
	digest = push("[Container]\nImage=two\n")
	r.untilContent("n3", "/opt/app/app.container", "[Container]\nImage=two\n")
	require.Eventually(t, func() bool { return r.rendered("n3").OS.Image == at+"/app@"+digest }, waitTimeout, 5*time.Millisecond)
	stop()
	untilConditions("n3", "SpecRendered=True:Rendered ReferencesResolved=False:Unavailable ")
	r.node("n4", resource.NodeSpec{OS: &resource.NodeOS{Image: at + "/other:v1"}})
	untilConditions("n4", "SpecRendered=True:Rendered ReferencesResolved=False:Unavailable ")
	require.Equal(t, at+"/other:v1", r.rendered("n4").OS.Image, "the node may reach what the hub can't")
}

// A content that was damaged in the hub is made again, though the spec is as it was.
func TestDamagedContentsAreMadeAgain(t *testing.T) {
	r := newTestHub(t)
	r.run()
	long := strings.Repeat("long ", 1000)
	r.node("n1", motdSpec(long))
	r.awaitVersion("n1", "1")
	r.mu.Lock()
	clear(r.blobs)
	r.mu.Unlock()
	r.run() // as after ten minutes
	r.untilContent("n1", "/etc/motd", long)
	require.Equal(t, "1", r.rendered("n1").RenderedVersion)
}

// A spec is rendered once for all nodes that have it, but again if what came of it is lost; one node's version says nothing of another's.
func TestNodesOfOneSpecHaveItsContents(t *testing.T) {
	r := newTestHub(t)
	r.run()
	long := strings.Repeat("long ", 1000)
	r.node("n1", motdSpec("another"))
	r.awaitVersion("n1", "1")
	r.node("n1", motdSpec(long))
	r.awaitVersion("n1", "2")
	r.mu.Lock()
	clear(r.blobs)
	r.mu.Unlock()
	r.node("n2", motdSpec(long))
	r.untilContent("n2", "/etc/motd", long)
	r.awaitVersion("n2", "1")
	require.Equal(t, r.rendered("n1").Files, r.rendered("n2").Files)
}

// The size that a spec gives for a blob is that of the blob.
func TestSizeOfABlob(t *testing.T) {
	r := newTestHub(t)
	r.run()
	digest := resource.DigestOf([]byte("content"))
	r.mu.Lock()
	r.blobs[digest] = "content"
	r.mu.Unlock()
	file := func(size int64) resource.NodeSpec {
		return resource.NodeSpec{Config: []resource.ConfigItem{{Name: "f", ConfigType: resource.ConfigFiles, Files: []resource.InlineFile{{Path: "/a", Digest: digest, Size: size}}}}}
	}
	r.node("n1", file(8))
	require.Equal(t, "SpecRendered=False:InvalidConfig ", r.await("n1"))
	require.Contains(t, r.status("n1").Conditions[0].Message, "spec.config[f].files[0].size: 8, but the blob "+digest+" has 7 bytes")
	r.node("n1", file(7))
	require.Equal(t, "SpecRendered=True:Rendered ", r.await("n1"))
	r.node("n1", resource.NodeSpec{})
	require.Equal(t, "SpecRendered=True:Rendered ", r.await("n1"))
	err := objects.Update(t.Context(), r.User, store.Key{Name: "n1"}, func(n *resource.Node) error { n.Spec = file(1 << 50); return nil })
	require.ErrorContains(t, err, "spec.config[0].files[0].size")
}

// A spec that never could be rendered, and that is emptied, is rendered.
func TestAnEmptiedSpecIsRendered(t *testing.T) {
	r := newTestHub(t)
	r.run()
	r.node("n1", configMapSpec("nosuch", "/etc"))
	require.Contains(t, r.await("n1"), "SpecRendered=False")
	r.node("n1", resource.NodeSpec{})
	require.Equal(t, "SpecRendered=True:Rendered ReferencesResolved=True:Resolved ", r.await("n1"))
}
