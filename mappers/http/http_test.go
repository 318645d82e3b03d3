// SPDX-License-Identifier: Apache-2.0

package http

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/mappers/settings"
)

// relayServer is a device with a relay, a level and a temperature.
type relayServer struct {
	t       *testing.T
	address string
	server  *http.Server

	mu       sync.Mutex
	state    map[string]any
	status   int // of all answers, if it is not 0
	requests []string
}

func newRelay(t *testing.T) *relayServer {
	t.Helper()
	r := &relayServer{t: t, address: "127.0.0.1:0", state: map[string]any{"temperature": 21.5, "relays": []any{map[string]any{"on": true}}, "level": 7, "name": "relay", "none": nil}}
	r.start()
	t.Cleanup(r.stop)
	return r
}

func (r *relayServer) start() {
	l, err := net.Listen("tcp", r.address)
	require.NoError(r.t, err)
	r.address = l.Addr().String()
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: time.Second}
	go func(s *http.Server) { _ = s.Serve(l) }(r.server)
}

func (r *relayServer) stop() { _ = r.server.Close() }

func (r *relayServer) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, strings.TrimSpace(q.Method+" "+q.URL.RequestURI()+" "+string(body)))
	if r.status != 0 {
		http.Error(w, "as told", r.status)
		return
	}
	switch q.Method + " " + q.URL.Path {
	case "GET /status":
		_ = json.NewEncoder(w).Encode(r.state)
	case "PUT /relay/0":
		var v struct{ On bool }
		if err := json.Unmarshal(body, &v); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.state["relays"] = []any{map[string]any{"on": v.On}}
	case "GET /level", "PUT /level":
		var level int
		if _, err := fmt.Sscan(q.URL.Query().Get("set"), &level); err != nil || level > 100 {
			http.Error(w, "the level is from 0 to 100", http.StatusUnprocessableEntity)
			return
		}
		r.state["level"] = level
	case "POST /name":
		r.state["name"] = string(body)
	case "POST /reboot":
		_, _ = io.WriteString(w, "in 5 s\n")
	default:
		http.NotFound(w, q)
	}
}

func newProperty(name string, typ mappers.Type, writable bool, config ...string) mappers.Property {
	p := mappers.Property{Name: name, Type: typ, Writable: writable, Visited: true, Config: map[string]string{}}
	for i := 0; i < len(config); i += 2 {
		p.Config[config[i]] = config[i+1]
	}
	return p
}

func (r *relayServer) device() mappers.Device {
	low, high := 0.0, 100.0
	level := newProperty("level", mappers.Int, true, "get", "/status", "path", "level", "write", "GET /level?set={value}")
	level.Minimum, level.Maximum = &low, &high
	return mappers.Device{Node: "n", Name: "relay", Config: map[string]string{"url": "http://" + r.address}, Properties: []mappers.Property{
		newProperty("temperature", mappers.Float, false, "get", "/status", "path", "temperature"), level,
		newProperty("on", mappers.Boolean, true, "get", "/status", "path", "relays[0].on", "write", "PUT /relay/0", "body", `{"on":{json}}`),
		newProperty("name", mappers.String, true, "get", "/status", "path", "name", "write", "POST /name"),
	}}
}

func openRelay(t *testing.T, o Options, d mappers.Device) *session {
	t.Helper()
	o.Timeout = time.Second
	opened, err := New(o).Open(t.Context(), d)
	require.NoError(t, err)
	t.Cleanup(func() { _ = opened.Close() })
	return opened.(*session)
}

func TestDriver(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Rig {
		r, other := newRelay(t), newRelay(t)
		change := func(pairs ...string) mappers.Device {
			d := r.device()
			for i := 0; i < len(pairs); i += 2 {
				d.Config[pairs[i]] = pairs[i+1]
			}
			return d
		}
		noGet := r.device()
		noGet.Properties = []mappers.Property{newProperty("x", mappers.Int, false, "path", "x")}
		another := other.device()
		another.Name = "second"
		return drivertest.Rig{
			Driver: New(Options{Timeout: time.Second}), Device: r.device(), Another: &another,
			Broken: map[string]mappers.Device{
				settings.DevicePath + "url": change("url", "ftp://x"), settings.DevicePath + "auth": change("auth", "magic"),
				settings.DevicePath + "credentials": change("auth", "basic"), settings.DevicePath + "header": change("auth", "none", "header", "X-Key"),
				settings.DevicePath + "colour": change("colour", "red"), "visitor x: config.get": noGet,
			},
			Stop: r.stop, Start: r.start,
		}
	})
	r := newRelay(t)
	d := r.device()
	d.Properties = []mappers.Property{newProperty("x", mappers.Int, false, "get", "//evil/status")}
	_, err := New(Options{}).Open(t.Context(), d)
	require.ErrorContains(t, err, "must be a path")
}

func TestPropertiesOfOnePathAreOfOneRequest(t *testing.T) {
	r := newRelay(t)
	d := r.device()
	d.Properties = append(d.Properties, newProperty("none", mappers.Int, false, "get", "/status", "path", "none"), newProperty("missing", mappers.Int, false, "get", "/status", "path", "missing"),
		newProperty("gone", mappers.Int, false, "get", "/gone"))
	s := openRelay(t, Options{}, d)
	groups := s.Group([]string{"temperature", "level", "on", "name", "none", "missing", "gone"})
	require.Len(t, groups, 2)
	got, err := s.ReadBatch(t.Context(), groups[0])
	require.NoError(t, err)
	for name, want := range map[string]string{"temperature": "21.5", "level": "7", "on": "true", "name": "relay"} {
		require.NoError(t, got[name].Err, name)
		assert.Equal(t, want, got[name].Value, name)
	}
	require.ErrorContains(t, got["none"].Err, "null")
	require.ErrorContains(t, got["missing"].Err, "has no [missing]")
	assert.Equal(t, []string{"GET /status"}, r.requests)
	got, err = s.ReadBatch(t.Context(), groups[1])
	require.NoError(t, err)
	require.ErrorContains(t, got["gone"].Err, "404 Not Found")
}

func TestWritesAndCommandsAreTheModelsRequests(t *testing.T) {
	r := newRelay(t)
	d := r.device()
	d.Commands = []mappers.Property{newProperty("reboot", "", false, "write", "POST /reboot")}
	s := openRelay(t, Options{}, d)
	require.NoError(t, s.Write(t.Context(), "on", "false"))
	require.NoError(t, s.Write(t.Context(), "level", "12"))
	require.NoError(t, s.Write(t.Context(), "name", `a "b"`))
	answer, err := s.Command(t.Context(), "reboot", nil)
	require.NoError(t, err)
	assert.Equal(t, "in 5 s", string(answer))
	assert.Equal(t, []string{`PUT /relay/0 {"on":false}`, "GET /level?set=12", `POST /name a "b"`, "POST /reboot"}, r.requests)
	var refusal *mappers.Refusal
	require.ErrorAs(t, s.Write(t.Context(), "level", "101"), &refusal)
	assert.Equal(t, mappers.Rejected, refusal.Code)
	assert.Contains(t, refusal.Message, "the level is from 0 to 100")
}

func TestWhatAStatusMeans(t *testing.T) {
	r := newRelay(t)
	s := openRelay(t, Options{}, r.device())
	for status, want := range map[int]string{401: mappers.Rejected, 404: mappers.NotReachable, 500: mappers.Unavailable} {
		r.mu.Lock()
		r.status = status
		r.mu.Unlock()
		got, err := s.ReadBatch(t.Context(), []string{"level"})
		require.NoError(t, err)
		var refusal *mappers.Refusal
		require.ErrorAs(t, got["level"].Err, &refusal)
		assert.Equal(t, want, refusal.Code)
	}
	for _, status := range []int{429, 502, 503, 504} { // busy, or somebody else
		r.mu.Lock()
		r.status = status
		r.mu.Unlock()
		_, err := s.ReadBatch(t.Context(), []string{"level"})
		require.ErrorContains(t, err, fmt.Sprint(status))
	}
}

func TestSignInIsForTheDeviceOnly(t *testing.T) {
	var said []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		said = append(said, "elsewhere "+q.Header.Get("Authorization"))
	}))
	defer other.Close()
	device := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		said = append(said, q.Header.Get("Authorization")+q.Header.Get("X-Key"))
		http.Redirect(w, q, other.URL, http.StatusFound)
	}))
	defer device.Close()
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("user", "ann\nsecret\n")
	write("token", "t0ken\n")
	write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: device.Certificate().Raw})))
	for want, config := range map[string]map[string]string{
		"Basic YW5uOnNlY3JldA==": {"auth": "basic", "credentials": "user"},
		"Bearer t0ken":           {"auth": "bearer", "credentials": "token"},
		"t0ken":                  {"auth": "header", "header": "X-Key", "credentials": "token"},
	} {
		said = nil
		config["url"], config["ca"] = device.URL, "ca.pem"
		s := openRelay(t, Options{CredentialsDir: dir}, mappers.Device{Config: config, Properties: []mappers.Property{newProperty("x", mappers.Int, false, "get", "/")}})
		got, err := s.ReadBatch(t.Context(), []string{"x"})
		require.NoError(t, err)
		require.ErrorContains(t, got["x"].Err, "302")
		assert.Equal(t, []string{want}, said)
	}
	s := openRelay(t, Options{}, mappers.Device{Config: map[string]string{"url": device.URL}, Properties: []mappers.Property{newProperty("x", mappers.Int, false, "get", "/")}})
	_, err := s.ReadBatch(t.Context(), []string{"x"})
	require.ErrorContains(t, err, "certificate")
}

func TestADeviceSendsItsValues(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "meter"), []byte("0123456789abcdef\n"), 0o600))
	d := mappers.Device{Name: "meter", Config: map[string]string{"url": "http://127.0.0.1", "hook": "meter"}, Properties: []mappers.Property{
		newProperty("power", mappers.Float, false, "path", "data.power"), newProperty("polled", mappers.Float, false, "get", "/x"),
	}, Events: []mappers.Property{newProperty("button", mappers.String, false, "path", "press")}}
	s := openRelay(t, Options{CredentialsDir: dir, Hooks: "127.0.0.1:0"}, d)
	told := make(chan string, 10)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Push(ctx, func(name, value string) { told <- name + "=" + value }) }()
	at := ""
	require.Eventually(t, func() bool {
		s.driver.hooks.mu.Lock()
		defer s.driver.hooks.mu.Unlock()
		if s.driver.hooks.server != nil {
			at = "http://" + s.driver.hooks.at.String()
		}
		return at != ""
	}, 5*time.Second, time.Millisecond)
	send := func(path, body string) int {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at+path, strings.NewReader(body))
		require.NoError(t, err)
		a, err := http.DefaultClient.Do(q)
		require.NoError(t, err)
		_ = a.Body.Close()
		return a.StatusCode
	}
	assert.Equal(t, 204, send("/hooks/meter/0123456789abcdef", `{"data":{"power":12.50}}`))
	assert.Equal(t, "power=12.50", <-told)
	assert.Equal(t, 404, send("/hooks/meter/wrong", `{"data":{"power":1}}`))
	assert.Equal(t, 404, send("/hooks/other/0123456789abcdef", `{"data":{"power":1}}`))
	assert.Equal(t, 422, send("/hooks/meter/0123456789abcdef", `{"polled":1}`))
	assert.Equal(t, 413, send("/hooks/meter/0123456789abcdef", strings.Repeat("x", maxAnswer+1)))
	assert.Equal(t, 422, send("/hooks/meter/0123456789abcdef", `{"press":"single"}`), "nobody listens for events yet")
	listening, stopListening := context.WithCancel(t.Context())
	go func() { ended <- s.Events(listening, func(name, value string) { told <- name + ":" + value }) }()
	require.Eventually(t, func() bool { return send("/hooks/meter/0123456789abcdef", `{"press":"single"}`) == 204 }, 5*time.Second, time.Millisecond)
	assert.Equal(t, "button:single", <-told)
	assert.Equal(t, 204, send("/hooks/meter/0123456789abcdef", `{"press":"single","data":{"power":1}}`))
	assert.ElementsMatch(t, []string{"power=1", "button:single"}, []string{<-told, <-told}, "equal ones are two")
	stopListening()
	require.NoError(t, <-ended)
	assert.Equal(t, 422, send("/hooks/meter/0123456789abcdef", `{"press":"single"}`))
	stop()
	require.NoError(t, <-ended)
	assert.Empty(t, told)
}

func TestAnAnswerThatIsTooLongIsNoValue(t *testing.T) {
	device := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", maxAnswer+1))
	}))
	defer device.Close()
	s := openRelay(t, Options{}, mappers.Device{Config: map[string]string{"url": device.URL}, Properties: []mappers.Property{newProperty("x", mappers.String, false, "get", "/")}})
	got, err := s.ReadBatch(t.Context(), []string{"x"})
	require.NoError(t, err)
	require.ErrorContains(t, got["x"].Err, "more than 1048576 bytes")
}
