// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
)

// The owner takes the offer of what a mirror has whole, of those whom nobody has to notice; all else it answers itself, and says where a mirror would have helped.
func TestWhatAHubThatStandsByAnswers(t *testing.T) {
	revoked, revoke := context.WithCancel(t.Context())
	h := newHub(t, func(o *hubOptions) {
		o.Authenticate = func(r *http.Request) (broker.Identity, error) {
			role := topics.Role(r.Header.Get("Role"))
			return broker.Identity{User: "u", Roles: []topics.Role{role}, Node: "n1", Nodes: []string{"*"}, Revoked: revoked}, nil
		}
		o.Mirrors = MirrorOptions{
			Offered: func(r *http.Request) json.RawMessage {
				return json.RawMessage(fmt.Sprintf(`{"owner":%s,"since":3}`, r.Header.Get("Owner")))
			},
			Position: func(string) MirrorPosition { return MirrorPosition{Owner: 7, Objects: 2} },
		}
	})
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON, "Role", "controller")
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""), "Role", "controller")
	const whole, one, never = "taken wanted", "taken ", " "
	devices := namespaceRoot + "/devices"
	offer := func(path, role string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.url+path, nil)
		require.NoError(t, err)
		r.Header.Set("Role", role)
		r.Header.Set("Owner", "7")
		answer, err := http.DefaultClient.Do(r) // a taken offer's answer lasts for as long as it may be used
		require.NoError(t, err)
		return answer
	}
	for _, c := range []struct{ role, path, want string }{
		{"operator", devices, whole},
		{"viewer", apiRoot + "/nodes?labelSelector=a", whole},
		{"operator", devices + "?limit=2", whole},
		{"operator", devices + "?limit=1", never},
		{"operator", devices + "?resourceVersion=0&limit=1", whole},
		{"operator", devices + "?resourceVersion=1&resourceVersionMatch=NotOlderThan", whole},
		{"operator", devices + "?resourceVersion=2&resourceVersionMatch=Exact", never},
		{"operator", devices + "?fieldSelector=metadata.name%3Dlamp", one},
		{"operator", devices + "?summary=spec.nodeName", never},
		{"operator", devices + "?search=lamp", never},
		{"operator", devices + "/lamp", never},
		{"operator", "/api/v1/namespaces/default/events", never},
		{"operator", "/api/v1/namespaces/default/secrets", never},
		{"operator", apiRoot + "/repositories", never},
		{"node", devices, never},
		{"viewer", devices + "?watch=true&resourceVersion=2&timeoutSeconds=1", " wanted"},
		{"mapper", devices, never},
	} {
		mirrored := offer(c.path, c.role)
		other := h.do("GET", c.path, "", "Role", c.role, "Owner", "6")
		require.Equal(t, c.want, mirrored.Header.Get(mirroredHeader)+" "+other.header.Get(mirroredHeader), c.role+c.path)
		if c.want == whole {
			var said mirroredAnswer
			require.NoError(t, json.NewDecoder(mirrored.Body).Decode(&said))
			require.Equal(t, "u", said.Identity.User)
			require.EqualValues(t, 7, said.Position.Owner)
		}
		require.NoError(t, mirrored.Body.Close())
	}
	lasts, ended := offer(devices, "operator"), make(chan error)
	go func() {
		_, err := io.Copy(io.Discard, lasts.Body)
		ended <- cmp.Or(err, revoked.Err())
	}()
	h.ok("GET", devices, "", "Role", "operator", "Owner", "6") // it would have ended by then
	revoke()
	require.ErrorIs(t, <-ended, context.Canceled, "it ends with the right to it")
	require.NoError(t, lasts.Body.Close())
}

// testMirrors say what they were asked. They have what they say at once, or never.
type testMirrors struct {
	behind bool
	said   []string
}

func (m *testMirrors) Begin(kind string)               { m.said = append(m.said, "begin "+kind) }
func (m *testMirrors) Of(string) (owner, since uint64) { return 7, 3 }
func (m *testMirrors) Await(_ context.Context, kind string, owner, changed, rev uint64) error {
	m.said = append(m.said, fmt.Sprintf("await %s %d %d %d", kind, owner, changed, rev))
	if m.behind {
		return context.DeadlineExceeded
	}
	return nil
}

// watchedOwner is an owner's answer that ends when the watch has begun for which it is.
type watchedOwner struct {
	*httptest.ResponseRecorder
	begun chan struct{}
	once  sync.Once
}

// revokedMirrors are not where the owner is before its answer has ended.
type revokedMirrors struct {
	testMirrors
	owner *io.PipeWriter
}

func (m *revokedMirrors) Await(ctx context.Context, _ string, _, _, _ uint64) error {
	_ = m.owner.Close()
	<-ctx.Done()
	return nil
}

// A list ends with the owner's answer, too: who has lost the right to it while the mirror was waited for is told nothing.
func TestAListAtAHubThatStandsByEndsWithTheRightToIt(t *testing.T) {
	mirrors := new(revokedMirrors)
	var m *MirrorServer
	h := newHub(t, func(o *hubOptions) {
		m = NewMirrorServer(Options{Objects: objects.New(objects.Options{Reader: o.Reader, Log: o.Log}), Reader: o.Reader, Watcher: o.Watcher, Log: o.Log}, mirrors, func() {})
	})
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	identity, err := json.Marshal(mirroredAnswer{broker.Identity{User: "u", Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}}, MirrorPosition{Owner: 7, Rev: 9, Changed: 5}})
	require.NoError(t, err)
	answer, owner := io.Pipe()
	mirrors.owner = owner
	go func() { _, _ = owner.Write(identity) }()
	w := httptest.NewRecorder()
	require.False(t, m.Answer(w, httptest.NewRequest(http.MethodGet, namespaceRoot+"/devicemodels", nil), answer))
	require.Empty(t, w.Body.String())
}

// endingReader is of a mirror whose owner ends while it is read.
type endingReader struct {
	store.Reader
	owner io.Closer
}

func (r endingReader) List(ctx context.Context, _ string, _ store.ListOptions) (store.Page, error) {
	_ = r.owner.Close()
	<-ctx.Done()
	return store.Page{}, ctx.Err()
}

// Clients of Kubernetes repeat what is 503 with Retry-After by themselves, and nothing that is 504.
func TestAnAnswerWhoseOwnerEndsIsToBeAskedForAgain(t *testing.T) {
	for _, query := range []string{"?resourceVersion=0", "?watch=true&resourceVersion=0"} {
		answer, owner := io.Pipe()
		var m *MirrorServer
		newHub(t, func(o *hubOptions) {
			m = NewMirrorServer(Options{Objects: objects.New(objects.Options{Reader: o.Reader, Log: o.Log}), Reader: endingReader{owner: owner}, Log: o.Log}, new(testMirrors), func() {})
		})
		identity, err := json.Marshal(mirroredAnswer{Identity: broker.Identity{User: "u", Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}}})
		require.NoError(t, err)
		go func() { _, _ = owner.Write(identity) }()
		w := httptest.NewRecorder()
		require.True(t, m.Answer(w, httptest.NewRequest(http.MethodGet, namespaceRoot+"/devicemodels"+query, nil), answer))
		require.Equal(t, http.StatusServiceUnavailable, w.Code, w.Body.String())
		require.Equal(t, "1", w.Header().Get("Retry-After"))
	}
}

func (w *watchedOwner) Flush() { w.once.Do(func() { close(w.begun) }) }

func (w *watchedOwner) Read([]byte) (int, error) {
	<-w.begun
	return 0, io.EOF
}

// A hub that stands by answers when its mirror is where the owner is, and at once who wants whatever is there; it answers as the one whom the owner has named, and watches
// end with the owner's answer. If the mirror doesn't get there it answers nothing.
func TestAHubThatStandsByAnswersWhenItsMirrorIsWhereTheOwnerIs(t *testing.T) {
	mirrors := new(testMirrors)
	var m *MirrorServer
	h := newHub(t, func(o *hubOptions) {
		objects := objects.New(objects.Options{Reader: o.Reader, Log: o.Log})
		m = NewMirrorServer(Options{Objects: objects, Reader: o.Reader, Watcher: o.Watcher, Log: o.Log}, mirrors, func() { mirrors.said = append(mirrors.said, "answered") })
	})
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	ask := func(query string, roles ...topics.Role) (is bool, w *httptest.ResponseRecorder, said []string) {
		mirrors.said = nil
		r := httptest.NewRequest(http.MethodGet, namespaceRoot+"/devices"+query, nil)
		require.JSONEq(t, `{"owner":7,"since":3}`, string(m.Offer(r)))
		identity, err := json.Marshal(mirroredAnswer{broker.Identity{User: "u", Roles: roles, Nodes: []string{"*"}}, MirrorPosition{Owner: 7, Rev: 9, Changed: 5}})
		require.NoError(t, err)
		w = httptest.NewRecorder()
		owner := &watchedOwner{ResponseRecorder: w, begun: make(chan struct{})}
		is = m.Answer(owner, r, io.MultiReader(bytes.NewReader(identity), owner))
		return is, w, mirrors.said
	}
	for query, want := range map[string][]string{
		"":                                {"await Device 7 5 9", "answered"},
		"?resourceVersion=1":              {"await Device 7 5 9", "answered"},
		"?resourceVersion=0&limit=1":      {"answered"},
		"?watch=true":                     {"await Device 7 5 9", "answered"},
		"?watch=true&timeoutSeconds=3600": {"await Device 7 5 9", "answered"},
	} {
		is, w, said := ask(query, topics.RoleOperator)
		require.True(t, is)
		require.Equal(t, want, said, query)
		require.Equal(t, http.StatusOK, w.Code)
		require.NotContains(t, w.Body.String(), "continue")
	}
	_, w, _ := ask("", topics.RoleMapper)
	require.Equal(t, http.StatusForbidden, w.Code)
	mirrors.behind = true
	is, w, said := ask("", topics.RoleOperator)
	require.False(t, is)
	require.Equal(t, []string{"await Device 7 5 9"}, said)
	require.Empty(t, w.Body.String())

	mirrors.said = nil
	r, header := httptest.NewRequest(http.MethodGet, namespaceRoot+"/devices", nil), http.Header{}
	for _, said := range []string{"", offerWanted, offerTaken} {
		header.Set(mirroredHeader, said)
		require.Equal(t, said == offerTaken, m.Told(r, header))
		require.Empty(t, header.Get(mirroredHeader), "it is not for clients")
	}
	require.Equal(t, []string{"begin Device"}, mirrors.said)
	require.Nil(t, m.Offer(httptest.NewRequest(http.MethodPost, namespaceRoot+"/devices", nil)))
	require.Nil(t, m.Offer(httptest.NewRequest(http.MethodGet, namespaceRoot+"/devices/lamp", nil)))
}
