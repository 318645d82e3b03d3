// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Container is one of the stand-in's.
type Container struct {
	ID, Name, Image, State, Status string
	Labels                         map[string]string
	Restarts, ExitCode             int
}

// Engine is a stand-in for a container engine.
type Engine struct {
	Socket string

	mu         sync.Mutex
	containers []Container
	networks   map[string]string // name → project
	images     []string
	listeners  []chan string
	made       int
}

// StartEngine starts a stand-in at a Unix socket.
func StartEngine(t testing.TB) *Engine {
	t.Helper()
	dir, err := os.MkdirTemp("", "eng") //nolint:usetesting // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	e := &Engine{Socket: filepath.Join(dir, "engine.sock"), networks: map[string]string{}}
	l, err := net.Listen("unix", e.Socket)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /_ping", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "OK") })
	mux.HandleFunc("GET /containers/json", e.list)
	mux.HandleFunc("GET /containers/{id}/json", e.inspect)
	mux.HandleFunc("POST /containers/{id}/stop", e.stop)
	mux.HandleFunc("DELETE /containers/{id}", e.remove)
	mux.HandleFunc("GET /networks", e.listNetworks)
	mux.HandleFunc("DELETE /networks/{name}", e.removeNetwork)
	mux.HandleFunc("POST /images/create", e.pull)
	mux.HandleFunc("GET /events", e.events)
	s := &http.Server{Handler: mux}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return e
}

// Run adds a container, or changes the one of that name, and tells the listeners.
func (e *Engine) Run(c Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.IndexFunc(e.containers, func(o Container) bool { return o.Name == c.Name })
	if i < 0 {
		e.made++
		c.ID = fmt.Sprintf("%064x", e.made)
		e.containers = append(e.containers, c)
	} else {
		c.ID = e.containers[i].ID
		e.containers[i] = c
	}
	e.tell(c.ID, "start")
}

// Network adds a network of a compose project.
func (e *Engine) Network(name, project string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.networks[name] = project
}

// Left are the names of all containers and networks.
func (e *Engine) Left() (names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.containers {
		names = append(names, c.Name)
	}
	for n := range e.networks {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Images are those that were pulled.
func (e *Engine) Images() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.images)
}

func (e *Engine) tell(id, action string) {
	for _, l := range e.listeners {
		select {
		case l <- fmt.Sprintf(`{"Type":"container","Action":%q,"id":%q}`+"\n", action, id):
		default:
		}
	}
}

func sendError(w http.ResponseWriter, code int, format string, args ...any) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": fmt.Sprintf(format, args...)})
}

func labelFilters(r *http.Request) []string {
	var f struct{ Label []string }
	_ = json.Unmarshal([]byte(r.URL.Query().Get("filters")), &f)
	return f.Label
}

func (e *Engine) list(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := []map[string]any{}
	for _, c := range e.containers {
		has := func(l string) bool { k, v, _ := strings.Cut(l, "="); return c.Labels[k] != v }
		if (c.State == "running" || r.URL.Query().Get("all") == "true") && !slices.ContainsFunc(labelFilters(r), has) {
			list = append(list, map[string]any{"Id": c.ID, "Names": []string{"/" + c.Name}, "Image": c.Image, "State": c.State, "Status": c.Status, "Labels": c.Labels})
		}
	}
	_ = json.NewEncoder(w).Encode(list)
}

// find is the index of the container that a request names, or the answer is given.
func (e *Engine) find(w http.ResponseWriter, r *http.Request) int {
	i := slices.IndexFunc(e.containers, func(c Container) bool { return c.ID == r.PathValue("id") || c.Name == r.PathValue("id") })
	if i < 0 {
		sendError(w, 404, "no such container: %s", r.PathValue("id"))
	}
	return i
}

func (e *Engine) inspect(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := e.find(w, r); i >= 0 {
		c := e.containers[i]
		_ = json.NewEncoder(w).Encode(map[string]any{"Id": c.ID, "RestartCount": c.Restarts, "State": map[string]any{"ExitCode": c.ExitCode}})
	}
}

func (e *Engine) stop(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.find(w, r)
	switch {
	case i < 0:
	case e.containers[i].State == "running":
		e.containers[i].State = "exited"
		e.tell(e.containers[i].ID, "die")
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusNotModified)
	}
}

func (e *Engine) remove(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := e.find(w, r); i >= 0 {
		e.tell(e.containers[i].ID, "remove")
		e.containers = slices.Delete(e.containers, i, i+1)
		w.WriteHeader(http.StatusNoContent)
	}
}

func (e *Engine) listNetworks(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := []map[string]string{}
	for name, project := range e.networks {
		if slices.Contains(labelFilters(r), "com.docker.compose.project="+project) {
			list = append(list, map[string]string{"Name": name})
		}
	}
	_ = json.NewEncoder(w).Encode(list)
}

func (e *Engine) removeNetwork(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.networks, r.PathValue("name"))
	w.WriteHeader(http.StatusNoContent)
}

// pull has every image but those of the registry none.example.
func (e *Engine) pull(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	image := r.URL.Query().Get("fromImage")
	fmt.Fprintf(w, "{\"status\":\"Trying to pull %s\"}\n", image)
	if strings.HasPrefix(image, "none.example/") {
		fmt.Fprint(w, "{\"error\":\"no such host\",\"errorDetail\":{\"message\":\"no such host\"}}\n")
		return
	}
	e.images = append(e.images, image)
	fmt.Fprint(w, "{\"id\":\"0123\"}\n")
}

func (e *Engine) events(w http.ResponseWriter, r *http.Request) {
	lines := make(chan string, 100)
	e.mu.Lock()
	e.listeners = append(e.listeners, lines)
	e.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case line := <-lines:
			fmt.Fprint(w, line)
			_ = flush.Flush()
		}
	}
}
