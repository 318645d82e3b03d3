// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// otherTree is the tree behind a server.
type otherTree struct{ got []string }

func (o *otherTree) Publish(m broker.Message, done func(error)) {
	o.got = append(o.got, m.Topic)
	done(nil)
}

func (o *otherTree) Retained(string) func(int) []broker.Message { return nil }

// newTestServer is a server that runs, in which node n1 may read the allowed digests.
func newTestServer(t *testing.T, s *Store, allowed map[string]bool) (server *Server, answers chan broker.Message, behind *otherTree) {
	answers, behind = make(chan broker.Message, 100), &otherTree{}
	server = NewServer(ServerOptions{
		Store: s, Tree: behind, Publish: func(m broker.Message) { answers <- m },
		Allowed: func(_ context.Context, node, digest string) (bool, error) {
			return node == "n1" && allowed[digest], nil
		},
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
	return server, answers, behind
}

func rangeMessage(node string, r resource.BlobRequest) broker.Message {
	payload, _ := json.Marshal(r)
	return broker.Message{Topic: "v1/nodes/" + node + "/blobs/get", Payload: payload, QoS: 1, Props: broker.Properties{
		ResponseTopic: "v1/nodes/" + node + "/blobs/answers/core", Correlation: []byte("7"),
	}}
}

// requestRange returns how a request was acknowledged.
func requestRange(s *Server, m broker.Message) error {
	got := make(chan error, 1)
	s.Publish(m, func(err error) { got <- err })
	return <-got
}

func TestANodeGetsRangesOfWhatItsSpecRefersTo(t *testing.T) {
	s := openTestStore(t, Options{})
	big := randomContent(100_000)
	mine, another := putContent(t, s, big), putContent(t, s, []byte("another node's"))
	missing := resource.DigestOf([]byte("missing"))
	server, answers, behind := newTestServer(t, s, map[string]bool{mine: true, missing: true})
	for _, offset := range []int64{0, 16 << 10, 90_000, 100_000} {
		require.NoError(t, requestRange(server, rangeMessage("n1", resource.BlobRequest{Digest: mine, Offset: offset, Length: 16 << 10})))
		a := <-answers
		require.Equal(t, "v1/nodes/n1/blobs/answers/core", a.Topic)
		require.Equal(t, []byte("7"), a.Props.Correlation)
		require.Empty(t, a.Props.User)
		require.Equal(t, big[offset:min(len(big), int(offset)+16<<10)], append([]byte{}, a.Payload...))
	}
	for _, c := range []struct {
		node, digest string
		offset       int64
		kind         resource.ErrorKind
	}{
		{"n1", another, 0, resource.Forbidden},
		{"n2", mine, 0, resource.Forbidden},
		{"n1", missing, 0, resource.NotFound},
		{"n1", mine, 100_001, resource.Invalid},
	} {
		require.NoError(t, requestRange(server, rangeMessage(c.node, resource.BlobRequest{Digest: c.digest, Offset: c.offset, Length: 10})))
		a := <-answers
		require.Empty(t, a.Payload)
		require.Equal(t, topics.PropCode, a.Props.User[0].Key)
		require.Equal(t, string(c.kind), a.Props.User[0].Value, a.Props.User[1].Value)
	}
	other := broker.Message{Topic: "v1/nodes/n1/devices/d/reported/p"}
	require.NoError(t, requestRange(server, other))
	require.Equal(t, []string{other.Topic}, behind.got)
	require.Equal(t, int64(4), server.answered.Load())
	require.Equal(t, int64(4), server.refused.Load())
}

func TestBadRequestsForBlobsAreRefused(t *testing.T) {
	s := openTestStore(t, Options{})
	digest := putContent(t, s, []byte("x"))
	server, answers, _ := newTestServer(t, s, map[string]bool{digest: true})
	bad := map[string]broker.Message{
		"digest":         rangeMessage("n1", resource.BlobRequest{Digest: "sha256:xyz", Length: 1}),
		"length":         rangeMessage("n1", resource.BlobRequest{Digest: digest}),
		"1 to 16384":     rangeMessage("n1", resource.BlobRequest{Digest: digest, Length: resource.MaxBlobRange + 1}),
		"0 or later":     rangeMessage("n1", resource.BlobRequest{Digest: digest, Offset: -1, Length: 1}),
		"not JSON":       {Topic: "v1/nodes/n1/blobs/get", Payload: []byte("{")},
		"response topic": rangeMessage("n1", resource.BlobRequest{Digest: digest, Length: 1}),
	}
	m := bad["response topic"]
	for _, reply := range []string{"", "mine", "v1/nodes/n2/blobs/answers/core", "v1/nodes/n1/state"} {
		m.Props.ResponseTopic = reply
		bad["response topic"] = m
		for want, m := range bad {
			err := requestRange(server, m)
			require.ErrorIs(t, err, resource.Invalid, want)
			require.ErrorContains(t, err, want)
		}
	}
	require.Empty(t, answers)
}

func TestRequestsOfANodeThatWaitAreBounded(t *testing.T) {
	s := openTestStore(t, Options{})
	digest := putContent(t, s, []byte("x"))
	server := NewServer(ServerOptions{Store: s, Publish: func(broker.Message) {}}) // it does not run
	var err error
	for range maxQueuedOfNode {
		require.NoError(t, err)
		err = requestRange(server, rangeMessage("n1", resource.BlobRequest{Digest: digest, Length: 1}))
	}
	require.ErrorIs(t, requestRange(server, rangeMessage("n1", resource.BlobRequest{Digest: digest, Length: 1})), resource.Unavailable)
	require.Equal(t, int64(maxQueuedOfNode), server.stats().waiting)
}

func TestSpecsSayWhichBlobsAreReferredTo(t *testing.T) {
	digest := func(i int) string { return resource.DigestOf([]byte(fmt.Sprint(i))) }
	spec := func(name string, file, app int) store.Object {
		data, err := json.Marshal(resource.RenderedSpec{
			Files:        []resource.RenderedFile{{Path: "/a"}, {Path: "/b", Content: resource.Content{Digest: digest(file)}}},
			Applications: []resource.RenderedApplication{{Files: []resource.RenderedFile{{Path: "c", Content: resource.Content{Digest: digest(app)}}}}},
		})
		require.NoError(t, err)
		return store.Object{Key: store.Key{Kind: resource.KindRenderedSpec, Name: name}, Data: data}
	}
	fleet := store.Object{Key: store.Key{Kind: resource.KindFleet, Name: "f"}, Data: []byte(`{"spec":{"digest":"` + digest(4) + `","not":"sha256:12"}}`)}
	specs := ReferenceFinder{fakeReader{spec("n1", 1, 2), spec("n2", 2, 3), fleet}}
	used := map[string]int{}
	require.NoError(t, specs.Refs(context.Background(), func(d string) { used[d]++ }))
	require.Equal(t, map[string]int{digest(1): 1, digest(2): 2, digest(3): 1, digest(4): 1}, used)
	for node, want := range map[string][]bool{"n1": {true, true, false}, "n2": {false, true, true}, "n3": {false, false, false}} {
		for i, want := range want {
			ok, err := specs.Allowed(context.Background(), node, digest(i+1))
			require.NoError(t, err)
			require.Equal(t, want, ok, "%s %d", node, i+1)
		}
	}
}

// fakeReader is a store with these objects, which lists one at a time.
type fakeReader []store.Object

func (r fakeReader) Get(_ context.Context, key store.Key) (store.Object, error) {
	for _, o := range r {
		if o.Key == key {
			return o, nil
		}
	}
	return store.Object{}, resource.Errorf(resource.NotFound, "", "there is none")
}

func (r fakeReader) List(_ context.Context, kind string, o store.ListOptions) (store.Page, error) {
	r = slices.DeleteFunc(slices.Clone(r), func(o store.Object) bool { return o.Kind != kind })
	for i := range r {
		if o.After == (store.Key{}) || i > 0 && r[i-1].Key == o.After {
			return store.Page{Items: r[i : i+1], More: len(r) - i - 1}, nil
		}
	}
	return store.Page{}, nil
}

func TestBlobsOverHTTP(t *testing.T) {
	s := openTestStore(t, Options{Refs: func(_ context.Context, use func(string)) error {
		use(resource.DigestOf([]byte("in use")))
		return nil
	}})
	inUse := putContent(t, s, []byte("in use"))
	server, _, _ := newTestServer(t, s, map[string]bool{inUse: true})
	who := broker.Identity{Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}}
	var last error
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if last = server.ServeHTTP(w, r, who); last != nil {
			http.Error(w, last.Error(), http.StatusTeapot)
		}
	}))
	defer site.Close()
	do := func(method, path string, body []byte, header ...string) (*http.Response, []byte) {
		r, err := http.NewRequestWithContext(context.Background(), method, site.URL+path, bytes.NewReader(body))
		require.NoError(t, err)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		res, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res, text
	}
	big := randomContent(5 << 20)
	digest := resource.DigestOf(big)
	var info Info
	_, text := do(http.MethodPut, "/blobs/"+digest, big)
	require.NoError(t, json.Unmarshal(text, &info), string(text))
	require.Equal(t, digest, info.Digest)
	_, text = do(http.MethodPost, "/blobs", big)
	require.NoError(t, json.Unmarshal(text, &info))
	require.Equal(t, Info{digest, 5 << 20, info.LastPut}, info)
	res, text := do(http.MethodGet, "/blobs/"+digest, nil, "Range", "bytes=1000-1999")
	require.Equal(t, http.StatusPartialContent, res.StatusCode)
	require.Equal(t, big[1000:2000], text)
	res, _ = do(http.MethodHead, "/blobs/"+digest, nil)
	require.Equal(t, int64(5<<20), res.ContentLength)
	var list []Info
	_, text = do(http.MethodGet, "/blobs", nil)
	require.NoError(t, json.Unmarshal(text, &list))
	require.Len(t, list, 2)
	for _, c := range []struct {
		method, path string
		kind         resource.ErrorKind
	}{
		{http.MethodPut, "/blobs/" + resource.DigestOf([]byte("else")), resource.Invalid},
		{http.MethodGet, "/blobs/" + resource.DigestOf([]byte("else")), resource.NotFound},
		{http.MethodGet, "/blobs/sha256:12", resource.Invalid},
		{http.MethodGet, "/blobs/../../etc/passwd", resource.Invalid},
		{http.MethodDelete, "/blobs/" + inUse, resource.Conflict},
		{http.MethodPatch, "/blobs", resource.NotFound},
	} {
		do(c.method, c.path, []byte("x"))
		require.ErrorIs(t, last, c.kind, "%s %s", c.method, c.path)
	}
	do(http.MethodDelete, "/blobs/"+digest, nil)
	require.NoError(t, last)
	require.Len(t, s.List(), 1)
	for i, id := range []broker.Identity{
		{Node: "n1", Roles: []topics.Role{topics.RoleNode}},
		{Node: "n2", Roles: []topics.Role{topics.RoleNode}},
		{Roles: []topics.Role{topics.RoleViewer}, Nodes: []string{"*"}},
		{Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"n1"}},
	} {
		who = id
		_, text = do(http.MethodGet, "/blobs/"+inUse, nil)
		if i == 0 {
			require.Equal(t, "in use", string(text))
		} else {
			require.ErrorIs(t, last, resource.Forbidden, "%d", i)
		}
		do(http.MethodGet, "/blobs", nil)
		require.ErrorIs(t, last, resource.Forbidden)
		do(http.MethodPost, "/blobs", []byte("x"))
		require.ErrorIs(t, last, resource.Forbidden)
	}
}

func TestAPutMayTakeLongerThanTheServersDeadlines(t *testing.T) {
	s := openTestStore(t, Options{})
	server, _, _ := newTestServer(t, s, nil)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		past := time.Now().Add(-time.Second) // as if the deadline that the site sets were over
		rc := http.NewResponseController(w)
		_ = errors.Join(rc.SetReadDeadline(past), rc.SetWriteDeadline(past))
		err := server.ServeHTTP(w, r, broker.Identity{Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}})
		if err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
		}
	}))
	defer site.Close()
	big := randomContent(1 << 20)
	res, err := http.Post(site.URL+"/blobs", "", bytes.NewReader(big))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	res, err = http.Get(site.URL + "/blobs/" + resource.DigestOf(big))
	require.NoError(t, err)
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, big, got)
}
