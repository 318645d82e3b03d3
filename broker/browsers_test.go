// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/password"
	"github.com/edgebus/edgebus/topics/resource"
)

// pageServer is an HTTP server with /session and /mqtt of a broker that has the user ann.
func pageServer(t *testing.T, b *Broker, secure bool) *httptest.Server {
	mux := http.NewServeMux()
	answer := func(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			switch err := f(w, r); {
			case err == nil:
			case resource.KindOf(err) == resource.Unauthorized:
				http.Error(w, err.Error(), http.StatusUnauthorized)
			default:
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		}
	}
	mux.HandleFunc("/session", answer(b.ServeSignIn))
	mux.HandleFunc("/mqtt", answer(b.ServeWebSocket))
	server := httptest.NewUnstartedServer(mux)
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

func annsBroker(t *testing.T) *Broker {
	hash := password.NewHash([]byte("secret"))
	return startBroker(t, func(o *Options) {
		o.Auth.Anonymous, o.Auth.Users = nil, []User{{Name: "ann", PasswordHash: hash, Role: topics.RoleOperator, Nodes: []string{"*"}}}
	})
}

// signIn signs in, and returns the answer and the cookie.
func signInAt(t *testing.T, s *httptest.Server, body string) (code int, cookie *http.Cookie) {
	res, err := s.Client().Post(s.URL+"/session", "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	for _, c := range res.Cookies() {
		cookie = c
	}
	return res.StatusCode, cookie
}

func whoamiAt(t *testing.T, s *httptest.Server, cookie *http.Cookie) (code int, who BrowserUser) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.URL+"/session", nil)
	require.NoError(t, err)
	r.AddCookie(cookie)
	res, err := s.Client().Do(r)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	_ = json.Unmarshal(raw, &who) // of a refusal nothing
	return res.StatusCode, who
}

func TestABrowserSignsInWithACookieThatEndsWithTheSignOut(t *testing.T) {
	b := annsBroker(t)
	s := pageServer(t, b, false)
	for _, wrong := range []string{`{"user":"ann","password":"wrong"}`, `{"user":"bob","password":"secret"}`, `{"token":"ebt_00"}`} {
		code, cookie := signInAt(t, s, wrong)
		require.Equal(t, http.StatusUnauthorized, code, wrong)
		require.Nil(t, cookie)
	}
	code, cookie := signInAt(t, s, `{"user":"ann","password":"secret"}`)
	require.Equal(t, http.StatusOK, code)
	require.True(t, cookie.HttpOnly)
	require.Equal(t, http.SameSiteLaxMode, cookie.SameSite)
	require.False(t, cookie.Secure)
	code, who := whoamiAt(t, s, cookie)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, BrowserUser{User: "ann", Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}, Browser: true}, who)

	ws := dialPage(t, s, cookie, s.URL)
	connectPage(t, ws)
	r, _ := http.NewRequestWithContext(context.Background(), http.MethodDelete, s.URL+"/session", nil)
	r.AddCookie(cookie)
	res, err := s.Client().Do(r)
	require.NoError(t, err)
	_ = res.Body.Close()
	require.Equal(t, http.StatusNoContent, res.StatusCode)
	require.Negative(t, res.Cookies()[0].MaxAge)
	code, _ = whoamiAt(t, s, cookie)
	require.Equal(t, http.StatusUnauthorized, code, "a copy of the cookie is worth nothing after the sign-out")
	_ = ws.SetReadDeadline(time.Now().Add(10 * time.Second))
	for err == nil {
		_, _, err = ws.ReadMessage()
	}
	require.False(t, strings.Contains(err.Error(), "timeout"), "the MQTT connection has ended with it: %v", err)
}

func TestABrowsersNextSignInEndsTheOneBefore(t *testing.T) {
	s := pageServer(t, annsBroker(t), false)
	_, first := signInAt(t, s, `{"user":"ann","password":"secret"}`)
	for _, c := range []struct {
		password string
		want     int // of the first sign-in, after that
	}{{"wrong", http.StatusOK}, {"secret", http.StatusUnauthorized}} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/session", strings.NewReader(`{"user":"ann","password":"`+c.password+`"}`))
		require.NoError(t, err)
		r.AddCookie(first)
		res, err := s.Client().Do(r)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		code, _ := whoamiAt(t, s, first)
		require.Equal(t, c.want, code, c.password)
	}
}

func TestACookieIsSecureOverTLS(t *testing.T) {
	s := pageServer(t, annsBroker(t), true)
	_, cookie := signInAt(t, s, `{"user":"ann","password":"secret"}`)
	require.True(t, cookie.Secure)
}

func TestAUsersOldestBrowserIsSignedOutForTheFiftyFirst(t *testing.T) {
	now := time.Now()
	s := browserSignIns{now: func() time.Time { now = now.Add(time.Second); return now }}
	first, _ := s.add(Identity{User: "ann"})
	other, _ := s.add(Identity{User: "bob"})
	for range maxBrowsersOf - 1 {
		s.add(Identity{User: "ann"})
	}
	require.NotNil(t, s.find(first))
	s.add(Identity{User: "ann"})
	require.Nil(t, s.find(first))
	require.NotNil(t, s.find(other))
}

func TestABrowsersSignInEndsWithTheTokenItWasMadeWith(t *testing.T) {
	revoked, revoke := context.WithCancel(context.Background())
	s := browserSignIns{now: time.Now}
	cookie, expires := s.add(Identity{User: "ann", Revoked: revoked, Expires: time.Now().Add(time.Minute)})
	require.Less(t, time.Until(expires), time.Hour)
	id := s.find(cookie)
	require.NotNil(t, id)
	revoke()
	require.Nil(t, s.find(cookie))
	<-id.Revoked.Done()
}

// dialPage opens /mqtt as a page of an origin does.
func dialPage(t *testing.T, s *httptest.Server, cookie *http.Cookie, origin string) *websocket.Conn {
	h := http.Header{"Origin": {origin}}
	if cookie != nil {
		h.Set("Cookie", cookie.String())
	}
	d := websocket.Dialer{Subprotocols: []string{"mqtt"}}
	ws, res, err := d.Dial("ws"+strings.TrimPrefix(s.URL, "http")+"/mqtt", h)
	if res != nil {
		_ = res.Body.Close()
	}
	if err != nil {
		t.Logf("%v", err)
		return nil
	}
	t.Cleanup(func() { _ = ws.Close() })
	return ws
}

// connectPage sends a CONNECT without a user name, and waits for the CONNACK.
func connectPage(t *testing.T, ws *websocket.Conn) {
	require.NoError(t, ws.WriteMessage(websocket.BinaryMessage, encodePacket(t, connectPacket("page"), 5)))
	_, answer, err := ws.ReadMessage()
	require.NoError(t, err)
	require.Equal(t, []byte{0x20}, answer[:1])
	require.Zero(t, answer[3], "the reason code")
}

func TestMQTTOfAPageIsThatOfWhoHasSignedInAndOfNoOtherOrigin(t *testing.T) {
	b := annsBroker(t)
	s := pageServer(t, b, false)
	_, cookie := signInAt(t, s, `{"user":"ann","password":"secret"}`)
	require.Nil(t, dialPage(t, s, nil, s.URL), "nobody has signed in")
	for _, foreign := range []string{"http://evil.example", "null", strings.Replace(s.URL, "127.0.0.1", "localhost", 1), s.URL + "0", "http://127.0.0.1"} {
		require.Nil(t, dialPage(t, s, cookie, foreign), foreign)
	}
	ws := dialPage(t, s, cookie, s.URL)
	connectPage(t, ws)
	require.Eventually(t, func() bool {
		for _, one := range b.Sessions() {
			if one.Client == "page" && one.User == "ann" {
				return true
			}
		}
		return false
	}, 10*time.Second, time.Millisecond)
	code, body := getText(t, s.URL+"/mqtt")
	require.Equal(t, http.StatusBadRequest, code)
	require.Contains(t, body, "MQTT over WebSocket")
}

func getText(t *testing.T, url string) (int, string) {
	res, err := http.Get(url) //nolint:noctx // a test
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	var b bytes.Buffer
	_, err = b.ReadFrom(res.Body)
	require.NoError(t, err)
	return res.StatusCode, b.String()
}

func TestAPageOfARebindingNameIsNotAnonymous(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Auth.Anonymous = []topics.Role{topics.RoleOperator} })
	s := pageServer(t, b, false)
	connectPage(t, dialPage(t, s, nil, s.URL))
	d := websocket.Dialer{Subprotocols: []string{"mqtt"}}
	ws, res, err := d.Dial("ws"+strings.TrimPrefix(s.URL, "http")+"/mqtt", http.Header{"Origin": {"http://evil.example"}, "Host": {"evil.example"}})
	if res != nil {
		_ = res.Body.Close()
	}
	require.Error(t, err)
	require.Nil(t, ws)
	require.Equal(t, http.StatusUnauthorized, res.StatusCode)
}

func TestAPagesConnectionLivesByItsPings(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Auth.Anonymous = []topics.Role{topics.RoleOperator} })
	s := pageServer(t, b, false)
	ws := dialPage(t, s, nil, s.URL)
	require.NoError(t, ws.WriteMessage(websocket.BinaryMessage, encodePacket(t, connectPacket("page", keepAlive(1)), 5)))
	_, _, err := ws.ReadMessage()
	require.NoError(t, err)
	for began := time.Now(); time.Since(began) < 2500*time.Millisecond; { // longer than a keep-alive and a half
		require.NoError(t, ws.WriteMessage(websocket.BinaryMessage, []byte{0xc0, 0}))
		_, answer, err := ws.ReadMessage()
		require.NoError(t, err)
		require.Equal(t, byte(0xd0), answer[0])
		<-time.After(200 * time.Millisecond) // as a client pings
	}
}
