// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
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
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/blobs"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/test/controltest"
	"github.com/edgebus/edgebus/test/sourcestest"
	"github.com/edgebus/edgebus/topics/resource"
)

const waitTimeout = 30 * time.Second

// testHub is a store with a resolver.
type testHub struct {
	*controltest.Hub
	resolver *Resolver
	content  *blobs.Store
}

// newTestStore is a hub of which nothing runs.
func newTestStore(t *testing.T) *testHub {
	t.Helper()
	h := controltest.New(t, nil)
	content, err := blobs.Open(blobs.Options{Dir: h.Dir, Log: zerolog.Nop()})
	require.NoError(t, err)
	return &testHub{Hub: h, content: content}
}

func newTestHub(t *testing.T, options Options, interval time.Duration) *testHub {
	t.Helper()
	h := newTestStore(t)
	h.resolver = NewResolver(ResolverOptions{
		Client: New(options), Objects: h.User, Reader: h.Store, Writer: h.Store, Blobs: h.content, Interval: interval,
	})
	h.Run(prometheus.NewRegistry(), h.resolver.Controllers()...)
	return h
}

func (h *testHub) repository(name, kind, url string, secret ...string) {
	h.Helper()
	r := &resource.Repository{Metadata: resource.Meta{Name: name}, Spec: resource.RepositorySpec{Type: kind, URL: url}}
	if len(secret) > 0 {
		h.secret(name, secret...)
		r.Spec.SecretRef = &resource.SecretRef{Name: name}
	}
	_, err := objects.Create(h.Context(), h.User, r)
	require.NoError(h, err)
}

func (h *testHub) secret(name string, pairs ...string) {
	h.Helper()
	data := map[string][]byte{}
	for i := 0; i < len(pairs); i += 2 {
		data[pairs[i]] = []byte(pairs[i+1])
	}
	_, err := objects.Create(h.Context(), h.User, &resource.Secret{Metadata: resource.Meta{Namespace: "default", Name: name}, Data: data})
	if err != nil {
		err = objects.Update(h.Context(), h.User, store.Key{Namespace: "default", Name: name}, func(s *resource.Secret) error { s.Data = data; return nil })
	}
	require.NoError(h, err)
}

// accessible is the condition of a Repository: its status, reason and message.
func (h *testHub) accessible(name string) string {
	h.Helper()
	r, err := objects.Get[resource.Repository](h.Context(), h.User, store.Key{Name: name})
	require.NoError(h, err)
	for _, c := range r.Status.Conditions {
		return c.Status + " " + c.Reason + " " + c.Message
	}
	return ""
}

func (h *testHub) untilAccessible(name, want string) {
	h.Helper()
	require.Eventually(h, func() bool { return strings.HasPrefix(h.accessible(name), want+" ") }, waitTimeout, 5*time.Millisecond, "%s is %s, not %s", name, want, h.accessible(name))
}

// Whatever is wrong with a repository, a server or a registry, a condition says it, without the credentials.
func TestAccessibleNamesTheCause(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	endless := func(w http.ResponseWriter, begin, text string) {
		_, err := io.WriteString(w, begin)
		for i := 0; err == nil; i++ {
			_, err = fmt.Fprintf(w, text, i)
		}
	}
	serve := func(f http.HandlerFunc) *httptest.Server {
		s := httptest.NewTLSServer(f)
		t.Cleanup(s.Close)
		return s
	}
	down := httptest.NewTLSServer(http.NotFoundHandler())
	down.Close()
	refusing := serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	slow := serve(func(http.ResponseWriter, *http.Request) { <-ended })
	t.Cleanup(func() { close(ended) }) // before the server is closed
	growing := serve(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/") && strings.Contains(r.URL.Path, "tags"):
			endless(w, `{"name":"x","tags":["a"`, `,"v%d"`)
		case strings.HasPrefix(r.URL.Path, "/v2/"):
		case strings.Contains(r.URL.Path, "info/refs"):
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			hash := strings.Repeat("1", 40)
			first := hash + " HEAD\x00agent=x\n"
			endless(w, fmt.Sprintf("001e# service=git-upload-pack\n0000%04x%s", len(first)+4, first), "0043"+hash+" refs/heads/n%09d\n")
		default:
			endless(w, "", "%d")
		}
	})
	h := newTestHub(t, Options{Allow: loopback, Timeout: 2 * time.Second, MaxBytes: 100 << 10}, time.Hour)
	guarded := newTestHub(t, Options{Timeout: 2 * time.Second}, time.Hour)
	for kind, below := range map[string]string{"git": "/x.git", "http": "/x", "oci": "/x"} {
		for fault, c := range map[string]struct {
			server *httptest.Server
			want   Reason
		}{
			"down": {down, Unavailable}, "slow": {slow, TimedOut}, "refusing": {refusing, Unauthorized}, "growing": {growing, TooLarge},
		} {
			secret := []string{"username", "ann", "password", "verysecret"}
			if fault != "down" {
				secret = append(secret, "ca.crt", ca(c.server))
			}
			h.repository(kind+"-"+fault, kind, c.server.URL+below, secret...)
			h.untilAccessible(kind+"-"+fault, "False "+string(c.want))
			require.NotContains(t, h.accessible(kind+"-"+fault), "verysecret")
		}
		h.repository(kind+"-untrusted", kind, refusing.URL+below)
		h.untilAccessible(kind+"-untrusted", "False CertificateNotTrusted")
		guarded.repository(kind+"-own", kind, refusing.URL+below)
		guarded.untilAccessible(kind+"-own", "False AddressNotAllowed")
		for i, metadata := range []string{"http://169.254.169.254", "http://[fe80::1]", "http://localhost:1", "http://0.0.0.0:1", "http://[::ffff:127.0.0.1]:1"} {
			name := fmt.Sprint(kind, "-metadata-", i)
			guarded.repository(name, kind, metadata+below)
			guarded.untilAccessible(name, "False AddressNotAllowed")
		}
	}
}

// A Repository whose Secret is corrected is looked at again at once.
func TestCredentialsAreCorrected(t *testing.T) {
	var reads atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "right" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		if r.URL.Path == "/site" {
			reads.Add(1)
		}
		fmt.Fprint(w, "hello")
	}))
	defer server.Close()
	h := newTestHub(t, Options{Allow: loopback}, time.Hour)
	h.repository("web", "http", server.URL, "username", "ann", "password", "wrong")
	ref := resource.Reference{Type: resource.RefHTTP, Source: "web", Path: "/site"}
	users := []store.Key{{Kind: resource.KindNode, Name: "n1"}, {Kind: resource.KindNode, Name: "n2"}, {Kind: resource.KindFleet, Name: "f"}}
	for _, user := range users {
		h.resolver.Use(user, []resource.Reference{ref, {Type: resource.RefSecret, Source: "default/x"}}, 0)
	}
	_, failure, err := h.resolver.Known(t.Context(), ref)
	require.NoError(t, err)
	require.NoError(t, failure)
	require.Eventually(t, func() bool { _, failure, _ = h.resolver.Known(t.Context(), ref); return failure != nil }, waitTimeout, time.Millisecond)
	requireReason(t, Unauthorized, failure)
	h.untilAccessible("web", "False Unauthorized")

	h.secret("web", "username", "ann", "password", "right")
	h.untilAccessible("web", "True Accessible")
	var known resource.Reference
	require.Eventually(t, func() bool {
		known, failure, _ = h.resolver.Known(t.Context(), ref)
		return known.Resolved != "" && failure == nil
	}, waitTimeout, time.Millisecond)
	require.Equal(t, resource.DigestOf([]byte("hello")), known.Files[0].Digest)
	size, ok := h.content.Has(known.Files[0].Digest)
	require.True(t, ok)
	require.EqualValues(t, 5, size)
	before := reads.Load()
	for range 10 { // however many ask
		_, err := h.resolver.Resolve(t.Context(), ref, time.Time{})
		require.NoError(t, err)
	}
	require.Equal(t, before, reads.Load())
	record := store.Object{Key: recordKey(recordName(ref))}
	require.Equal(t, users[:2], h.resolver.Users(resource.KindNode)(record))
	require.Equal(t, users[2:], h.resolver.Users(resource.KindFleet)(record))

	err = objects.UpdateStatus(t.Context(), h.User, store.Key{Name: "web"}, func(r *resource.Repository) error { r.Status.NotifiedAt = "now"; return nil })
	require.NoError(t, err)
	require.Eventually(t, func() bool { return reads.Load() > before }, waitTimeout, time.Millisecond, "a webhook has it read")
	digests := map[string]bool{}
	require.NoError(t, blobs.ReferenceFinder{Reader: h.Store}.Refs(t.Context(), func(d string) { digests[d] = true }))
	require.Equal(t, map[string]bool{known.Files[0].Digest: true}, digests)
}

// A source that can't be read is tried again after a minute, and each time half as often, down to as often as others; at once if
// something says so.
func TestFailedSourcesAreReadAgain(t *testing.T) {
	var answer atomic.Bool
	var reads atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reads.Add(1)
		if !answer.Load() {
			http.Error(w, "no", http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	h := newTestStore(t)
	h.repository("web", "http", server.URL)
	s := NewResolver(ResolverOptions{
		Client: New(Options{Allow: loopback}), Objects: h.User, Reader: h.Store, Writer: h.Store, Blobs: h.content, Now: func() time.Time { return now },
	})
	ref := resource.Reference{Type: resource.RefHTTP, Source: "web", Path: "/x"}
	key := recordKey(recordName(ref))
	s.Use(store.Key{Kind: resource.KindNode, Name: "n"}, []resource.Reference{ref}, 0)
	reconcile := func(wait time.Duration, read int32) {
		t.Helper()
		before := reads.Load()
		again, err := s.reconcile(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, wait, again)
		require.Equal(t, read, reads.Load()-before)
	}
	reconcile(time.Minute, 1)
	for _, wait := range []time.Duration{2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute} {
		_, failure, err := s.Known(t.Context(), ref)
		require.NoError(t, err)
		requireReason(t, Unavailable, failure)
		again, err := s.reconcile(t.Context(), key) // since the record has changed
		require.NoError(t, err)
		now = now.Add(again - time.Second)
		reconcile(time.Second, 0)
		now = now.Add(time.Second)
		reconcile(wait, 1)
	}
	stored, err := h.Store.Get(t.Context(), store.Key{Kind: resource.KindRepository, Name: "web"})
	require.NoError(t, err)
	require.Equal(t, []store.Key{key}, s.sourcesOfRepository(nil, &stored)) // it is first seen
	now = now.Add(time.Second)
	reconcile(time.Minute, 1)
	answer.Store(true)
	now = now.Add(time.Minute)
	reconcile(5*time.Minute, 1)
	now = now.Add(time.Minute)
	reconcile(4*time.Minute, 0)
	require.Equal(t, 10*time.Second, lastRead{failures: 1000}.next(10*time.Second))
}

// A source that is read for the first time may be asked for meanwhile, which fails neither.
func TestSourcesAreAskedForWhileTheyAreRead(t *testing.T) {
	h := newTestStore(t)
	ref := resource.Reference{Type: resource.RefHTTP, Source: "web", Path: "/x"}
	var s *Resolver
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		known, failure, err := s.Known(r.Context(), ref)
		if err == nil && failure == nil {
			fmt.Fprint(w, "hello", known.Resolved)
		}
	}))
	defer server.Close()
	h.repository("web", "http", server.URL)
	s = NewResolver(ResolverOptions{Client: New(Options{Allow: loopback}), Objects: h.User, Reader: h.Store, Writer: h.Store, Blobs: h.content})
	got, err := s.Resolve(t.Context(), ref, time.Time{})
	require.NoError(t, err)
	require.Equal(t, resource.DigestOf([]byte("hello")), got.Resolved)
	known, failure, err := s.Known(t.Context(), ref)
	require.NoError(t, err)
	require.NoError(t, failure)
	require.Equal(t, got, known)
}

// The record of a source that nobody uses any more goes.
func TestUnusedSourcesGo(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer server.Close()
	h := newTestHub(t, Options{Allow: loopback}, 20*time.Millisecond)
	h.repository("web", "http", server.URL)
	ref := resource.Reference{Type: resource.RefHTTP, Source: "web"}
	user := store.Key{Kind: resource.KindNode, Name: "n1"}
	count := func() int {
		page, err := h.Store.List(t.Context(), resource.KindSource, store.ListOptions{})
		require.NoError(t, err)
		return len(page.Items)
	}
	h.resolver.Use(user, []resource.Reference{ref}, 0)
	_, err := h.resolver.Resolve(t.Context(), ref, time.Time{})
	require.NoError(t, err)
	require.Equal(t, 1, count())
	h.resolver.Use(user, nil, 0)
	require.Eventually(t, func() bool { return count() == 0 }, waitTimeout, time.Millisecond)
}

// A change of a Repository, and of its Secret, has its sources read again, and nothing else has. The images that were in its registry before
// are read again as those that are in it now.
func TestChangesOfRepositoriesHaveSourcesReadAgain(t *testing.T) {
	h := newTestStore(t)
	s := NewResolver(ResolverOptions{Client: New(Options{}), Objects: h.User, Reader: h.Store, Writer: h.Store, Blobs: h.content})
	image := func(at string) resource.Reference {
		return resource.Reference{Type: resource.RefImage, Source: at + ".example/app", Floating: "1"}
	}
	s.Use(store.Key{Kind: resource.KindNode, Name: "n1"}, []resource.Reference{image("one"), image("two")}, 0)
	version := func(at, secret, status string) store.Object {
		return store.Object{
			Key: store.Key{Kind: resource.KindRepository, Name: "r"}, Status: []byte(status),
			Data: []byte(`{"metadata":{"uid":"u"},"spec":{"type":"oci","url":"oci://` + at + `.example","secretRef":{"name":"` + secret + `"}}}`),
		}
	}
	one, two := recordKey(recordName(image("one"))), recordKey(recordName(image("two")))
	secret := func(name string) store.Object {
		return store.Object{Key: store.Key{Kind: resource.KindSecret, Namespace: "default", Name: name}}
	}
	change := func(before, now *store.Object) []store.Key {
		s.repositories.Change(before, now)
		return s.sourcesOfRepository(before, now)
	}
	first, moved, notified := version("one", "a", ""), version("two", "b", ""), version("two", "b", `{"notifiedAt":"now"}`)
	require.Equal(t, []store.Key{one}, change(nil, &first))
	require.Equal(t, []store.Key{one}, s.sourcesOfSecret(secret("a")))
	require.Equal(t, []store.Key{one, two}, change(&first, &moved))
	require.Empty(t, s.sourcesOfSecret(secret("a")))
	require.Equal(t, []store.Key{two}, s.sourcesOfSecret(secret("b")))
	require.Contains(t, change(&moved, &notified), two)
	shown := version("two", "b", `{"notifiedAt":"now","conditions":[]}`)
	require.Empty(t, change(&notified, &shown), "nothing has changed for its sources")
	require.Equal(t, []store.Key{two}, change(&shown, nil))
	require.Empty(t, s.sourcesOfSecret(secret("b")))
}

// What the Secret of a Repository doesn't have is taken from its spec, also if the Secret has nothing.
func TestCredentialsOfSpecAndSecret(t *testing.T) {
	h := newTestStore(t)
	s := NewResolver(ResolverOptions{Client: New(Options{}), Objects: h.User, Reader: h.Store, Writer: h.Store, Blobs: h.content})
	spec := resource.RepositorySpec{Credentials: map[string][]byte{"username": []byte("ann"), "password": []byte("old")}, SecretRef: &resource.SecretRef{Name: "s"}}
	h.secret("s")
	repo, err := s.withSecret(t.Context(), spec)
	require.NoError(t, err)
	require.Equal(t, spec.Credentials, repo.Secret)
	h.secret("s", "password", "new")
	repo, err = s.withSecret(t.Context(), spec)
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{"username": []byte("ann"), "password": []byte("new")}, repo.Secret)
}

// archiveLayer is a layer that is an archive.
func archiveLayer(t *testing.T, media types.MediaType, headers ...tar.Header) v1.Layer {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, h := range headers {
		body := h.Linkname
		if h.Typeflag == tar.TypeReg {
			h.Linkname, h.Size = "", int64(len(body))
		}
		require.NoError(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte(body))
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	require.NoError(t, zip.Close())
	return static.NewLayer(out.Bytes(), media)
}

// readArtifact reads the files of an artifact, without those that others replace.
func readArtifact(t *testing.T, c *Client, r RepositoryAccess, image, known string) (digest string, files []File, err error) {
	read := map[string]File{}
	digest, kept, err := c.Artifact(t.Context(), r, image, known, func(f File) (resource.InlineFile, error) {
		name := fmt.Sprint(len(read))
		read[name] = f
		return resource.InlineFile{Path: name}, nil
	})
	for _, file := range kept {
		files = append(files, read[file.Path])
	}
	return digest, files, err
}

func TestArtifactsAreRead(t *testing.T) {
	host, _ := sourcestest.Registry(t)
	at := host + "/config"
	r := repo("http://" + host)
	r.Spec.Type = "oci"
	read := func(c *Client, layers ...mutate.Addendum) ([]File, error) {
		artifact, err := mutate.Append(empty.Image, layers...)
		require.NoError(t, err)
		ref, err := name.ParseReference(at + ":v1")
		require.NoError(t, err)
		require.NoError(t, remote.Write(ref, artifact))
		digest, files, err := readArtifact(t, c, r, at+":v1", "")
		if err == nil {
			want, hashed := artifact.Digest()
			require.NoError(t, hashed)
			require.Equal(t, want.String(), digest)
			same, none, err := readArtifact(t, c, r, at+":v1", digest)
			require.NoError(t, err)
			require.Equal(t, digest, same)
			require.Empty(t, none)
		}
		return files, err
	}
	file := func(name, text string, mode int64) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: text, Mode: mode}
	}
	titled := func(title, text string) mutate.Addendum {
		return mutate.Addendum{Layer: static.NewLayer([]byte(text), "text/plain"), Annotations: map[string]string{titleAnnotation: title}}
	}
	layer := func(headers ...tar.Header) mutate.Addendum {
		return mutate.Addendum{Layer: archiveLayer(t, types.DockerLayer, headers...)}
	}
	files, err := read(client(), titled("a/compose.yaml", "services: {}\n"), titled("z", ""))
	require.NoError(t, err)
	require.Equal(t, []File{{"a/compose.yaml", 0o644, []byte("services: {}\n")}, {"z", 0o644, []byte{}}}, files)

	files, err = read(client(),
		layer(tar.Header{Typeflag: tar.TypeDir, Name: "./etc/", Mode: 0o755}, file("./etc/motd", "one", 0o600), file("etc/gone/x", "x", 0o644), file("/etc/old", "old", 0o644), file("etc/dir/y", "y", 0o755)),
		layer(file("etc/motd", "two", 0o640), file("etc/.wh.old", "", 0), file("etc/.wh.gone", "", 0), file("etc/dir/.wh..wh..opq", "", 0)))
	require.NoError(t, err)
	require.Equal(t, []File{{"etc/motd", 0o640, []byte("two")}}, files)

	unpacked := layer(file("conf/a", "a", 0o644))
	unpacked.Annotations = map[string]string{titleAnnotation: "conf", unpackAnnotation: "true"}
	files, err = read(client(), unpacked)
	require.NoError(t, err)
	require.Equal(t, []File{{"conf/a", 0o644, []byte("a")}}, files)

	for what, bad := range map[string]mutate.Addendum{
		"a link": layer(tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc/shadow"}), "a way out": titled("../../etc/passwd", "x"), "an absolute name": titled("/etc/passwd", "x"),
	} {
		_, err := read(client(), bad)
		requireReason(t, Invalid, err)
		t.Log(what, err)
	}
	files, err = read(client(), layer(file("../../etc/passwd", "x", 0o644)))
	require.NoError(t, err)
	require.Equal(t, "etc/passwd", files[0].Path, "it stays below")
	_, err = read(client(func(o *Options) { o.MaxBytes = 10 << 10 }), layer(file("bomb", strings.Repeat("0", 1<<20), 0o644)))
	requireReason(t, TooLarge, err)
	_, err = read(client(func(o *Options) { o.MaxFiles = 1 }), titled("a", "1"), titled("b", "2"))
	requireReason(t, TooLarge, err)
	small := func(o *Options) { o.MaxBytes = 10 << 10 }
	_, err = read(client(small), titled("a", strings.Repeat("a", 6<<10)), titled("b", strings.Repeat("b", 6<<10)))
	requireReason(t, TooLarge, err)
	require.ErrorContains(t, err, "its layers have more than 10240 bytes")
	_, err = read(client(small), layer(tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"x": strings.Repeat("0", 1<<19)}}))
	requireReason(t, TooLarge, err)
	require.ErrorContains(t, err, "when they are inflated, have more than 40960 bytes")
	_, err = read(client(small), layer(file(strings.Repeat("d/", 6<<10)+"f", "", 0o644)))
	requireReason(t, TooLarge, err)

	squeezed := func(o ...zstd.EOption) mutate.Addendum {
		var plain, out bytes.Buffer
		w := tar.NewWriter(&plain)
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o600, Size: 9 << 20}))
		_, err := w.Write(make([]byte, 9<<20))
		require.NoError(t, errors.Join(err, w.Close()))
		z, err := zstd.NewWriter(&out, o...)
		require.NoError(t, err)
		_, err = plain.WriteTo(z)
		require.NoError(t, errors.Join(err, z.Close()))
		return mutate.Addendum{Layer: static.NewLayer(out.Bytes(), types.OCILayerZStd)}
	}
	files, err = read(client(), squeezed())
	require.NoError(t, err)
	require.Equal(t, []File{{"f", 0o600, make([]byte, 9<<20)}}, files)
	_, err = read(client(), squeezed(zstd.WithWindowSize(512<<20)))
	require.ErrorContains(t, err, "window size exceeded", "a layer doesn't choose how much memory it takes")
	_, _, err = readArtifact(t, client(), r, at+":nosuch", "")
	requireReason(t, NotFound, err)
	_, _, err = readArtifact(t, client(), r, "What is this?", "")
	requireReason(t, Invalid, err)
	_, _, err = readArtifact(t, New(Options{}), r, at+":v1", "")
	requireReason(t, NotAllowed, err)
}

// The credentials of a Repository of git or of a registry are not sent where an httpRef says.
func TestAnHTTPRefNeedsARepositoryOfTypeHTTP(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/secret" {
			asked.Add(1)
		}
	}))
	defer server.Close()
	h := newTestHub(t, Options{Allow: loopback}, time.Hour)
	for _, kind := range []string{"git", "oci"} {
		h.repository(kind, kind, strings.Replace(server.URL, "http://", map[string]string{"git": "http://", "oci": "oci://"}[kind], 1), "token", "verysecret")
		_, err := h.resolver.Resolve(t.Context(), resource.Reference{Type: resource.RefHTTP, Source: kind, Path: "/secret"}, time.Now())
		requireReason(t, Invalid, err)
		require.ErrorContains(t, err, "needs one of type http")
	}
	require.Zero(t, asked.Load())
}
