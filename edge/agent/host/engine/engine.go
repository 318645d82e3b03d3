// SPDX-License-Identifier: Apache-2.0

// Package engine talks to a host's container engines, podman and docker, over their Unix sockets: containers, events, images. It
// speaks the API that both have (podman serves docker's as well as its own), never runs a program, and needs none of their libraries.
package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Engine is a container engine at a Unix socket.
type Engine struct {
	// Name is podman or docker.
	Name   string
	socket string
	client *http.Client
}

// New makes an Engine. Whether it is there shows when it is used.
func New(name, socket string) *Engine {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &Engine{Name: name, socket: socket, client: &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConns: 1, IdleConnTimeout: 30 * time.Second}}}
}

// Container is a container of an engine.
type Container struct {
	ID     string            `json:"Id"`
	Names  []string          `json:"Names"`
	Image  string            `json:"Image"`
	State  string            `json:"State"`  // created, running, paused, restarting, exited, dead
	Status string            `json:"Status"` // for people: Up 3 hours, Exited (1) 2 minutes ago
	Labels map[string]string `json:"Labels"`
	// Restarts and ExitCode are set by Inspect.
	Restarts int `json:"-"`
	ExitCode int `json:"-"`
}

// Name is the container's name.
func (c Container) Name() string {
	if len(c.Names) == 0 {
		return ""
	}
	return strings.TrimPrefix(c.Names[0], "/")
}

const (
	callTimeout = 10 * time.Second
	maxBody     = 8 << 20
)

// do sends a request. The caller closes the answer's body. An answer that is no success is an error with the engine's words.
func (e *Engine) do(ctx context.Context, method, path string, query url.Values) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: e.Name, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := e.client.Do(req)
	if err != nil {
		var bad *url.Error
		if errors.As(err, &bad) {
			err = bad.Err
		}
		return nil, fmt.Errorf("%s at %s: %w", e.Name, e.socket, err)
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // as much as there is
		var answer struct{ Message, Cause string }
		if json.Unmarshal(text, &answer) != nil || answer.Message == "" {
			answer.Message = strings.TrimSpace(string(text))
		}
		return nil, &Error{Engine: e.Name, Code: resp.StatusCode, Message: answer.Message}
	}
	return resp, nil
}

// Error is what an engine answers.
type Error struct {
	Engine  string
	Code    int
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (HTTP %d)", e.Engine, e.Message, e.Code) }

// call sends a request and decodes the answer into out, unless out is nil.
func (e *Engine) call(ctx context.Context, method, path string, query url.Values, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := e.do(ctx, method, path, query)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s at %s: %w", e.Name, e.socket, err)
	case len(body) > maxBody:
		return fmt.Errorf("%s at %s: the answer has more than %d bytes", e.Name, e.socket, maxBody)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%s at %s: %w", e.Name, e.socket, err)
	}
	return nil
}

// Ping says why the engine is not there, nil if it is.
func (e *Engine) Ping(ctx context.Context) error {
	return e.call(ctx, http.MethodGet, "/_ping", nil, nil)
}

// List lists containers, those that don't run as well, in the order of their names; only those with a label key=value, unless label is empty.
func (e *Engine) List(ctx context.Context, label string) ([]Container, error) {
	query := url.Values{"all": {"true"}}
	if label != "" {
		query.Set("filters", queryFilter("label", label))
	}
	var list []Container
	if err := e.call(ctx, http.MethodGet, "/containers/json", query, &list); err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b Container) int { return strings.Compare(a.Name(), b.Name()) })
	return list, nil
}

func queryFilter(key, value string) string {
	text, _ := json.Marshal(map[string][]string{key: {value}}) // texts
	return string(text)
}

// Inspect adds to a container what List doesn't say.
func (e *Engine) Inspect(ctx context.Context, c Container) (Container, error) {
	var found struct {
		RestartCount int
		State        struct{ ExitCode int }
	}
	err := e.call(ctx, http.MethodGet, "/containers/"+c.ID+"/json", nil, &found)
	c.Restarts, c.ExitCode = found.RestartCount, found.State.ExitCode
	return c, err
}

// projectLabel is on everything that compose makes: docker's label, which podman-compose sets as well.
const projectLabel = "com.docker.compose.project="

// Project lists the containers of a compose project.
func (e *Engine) Project(ctx context.Context, project string) ([]Container, error) {
	return e.List(ctx, projectLabel+project)
}

// stopTimeout is how long a container may take to stop before it is killed.
const stopTimeout = "10"

// Down stops and removes the containers of a compose project, and removes its networks. Its volumes stay. It needs no compose file,
// so it works after the file is gone.
func (e *Engine) Down(ctx context.Context, project string) error {
	list, err := e.Project(ctx, project)
	if err != nil {
		return err
	}
	for _, c := range list {
		if err := e.remove(ctx, c.ID); err != nil {
			return err
		}
	}
	// podman-compose puts the containers into a pod; docker knows no such path.
	if err := e.call(ctx, http.MethodDelete, "/v4.0.0/libpod/pods/pod_"+project, url.Values{"force": {"true"}}, nil); err != nil && !isNotFound(err) {
		return err
	}
	var networks []struct{ Name string }
	if err := e.call(ctx, http.MethodGet, "/networks", url.Values{"filters": {queryFilter("label", projectLabel+project)}}, &networks); err != nil {
		return err
	}
	for _, n := range networks {
		if err := e.call(ctx, http.MethodDelete, "/networks/"+url.PathEscape(n.Name), nil, nil); err != nil && !isNotFound(err) {
			return err
		}
	}
	return nil
}

func (e *Engine) remove(ctx context.Context, id string) error {
	// A container that takes its time is stopped in more than an answer's usual time.
	resp, err := e.do(ctx, http.MethodPost, "/containers/"+id+"/stop", url.Values{"t": {stopTimeout}})
	if err == nil {
		resp.Body.Close()
		err = e.call(ctx, http.MethodDelete, "/containers/"+id, url.Values{"force": {"true"}}, nil)
	}
	if isNotFound(err) {
		return nil
	}
	return err
}

func isNotFound(err error) bool {
	var answer *Error
	return errors.As(err, &answer) && answer.Code == http.StatusNotFound
}

// Pull fetches an image from its registry.
func (e *Engine) Pull(ctx context.Context, image string) error {
	resp, err := e.do(ctx, http.MethodPost, "/images/create", url.Values{"fromImage": {image}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// Progress comes as one document after another; a failure is one of them, since the answer has begun by then.
	for d := json.NewDecoder(resp.Body); ; {
		var step struct{ Error string }
		if err := d.Decode(&step); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: pull %s: %w", e.Name, image, err)
		}
		if step.Error != "" {
			return fmt.Errorf("%s: pull %s: %s", e.Name, image, step.Error)
		}
	}
}

// Events calls changed for each event of a container until the connection ends, and returns why it did.
func (e *Engine) Events(ctx context.Context, changed func()) error {
	resp, err := e.do(ctx, http.MethodGet, "/events", url.Values{"filters": {queryFilter("type", "container")}, "stream": {"true"}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// An event is a line. Its content is ignored: the containers are listed anew.
	buffer := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buffer)
		if bytes.IndexByte(buffer[:n], '\n') >= 0 || bytes.IndexByte(buffer[:n], '}') >= 0 {
			changed()
		}
		if err != nil {
			return fmt.Errorf("%s at %s: events: %w", e.Name, e.socket, err)
		}
	}
}
