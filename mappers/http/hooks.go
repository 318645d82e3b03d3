// SPDX-License-Identifier: Apache-2.0

package http

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/edgebus/edgebus/mappers/jsonpath"
)

// hookServer takes what devices send: POST or PUT /hooks/{device}/{secret}. It runs while a session wants it.
type hookServer struct {
	address string

	mu       sync.Mutex
	server   *http.Server
	at       net.Addr
	sessions map[*session]hookUser
}

// hookUser is told what a device sends; nil: nobody listens.
type hookUser struct{ value, event func(name, value string) }

func newHookServer(address string) *hookServer {
	return &hookServer{address: address, sessions: map[*session]hookUser{}}
}

// change has a session listen for values or events besides, or no more.
func (h *hookServer) change(s *session, change func(*hookUser)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.address == "" {
		return errors.New("this mapper takes nothing from devices: set driver.hooks")
	}
	if h.server == nil {
		l, err := net.Listen("tcp", h.address)
		if err != nil {
			return fmt.Errorf("hooks at %s: %w", h.address, err)
		}
		mux := http.NewServeMux()
		for _, method := range []string{http.MethodPost, http.MethodPut} {
			mux.HandleFunc(method+" /hooks/{device}/{secret}", h.receive)
		}
		h.at = l.Addr()
		h.server = &http.Server{
			Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		}
		go func(server *http.Server) { _ = server.Serve(l) }(h.server)
	}
	u := h.sessions[s]
	change(&u)
	h.sessions[s] = u
	if u.value == nil && u.event == nil {
		delete(h.sessions, s)
	}
	if len(h.sessions) == 0 && h.server != nil {
		_ = h.server.Close()
		h.server = nil
	}
	return nil
}

// find is the session of a device that knows the secret. Who doesn't know it isn't told whether the device is there.
func (h *hookServer) find(device, secret string) (*session, hookUser) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s, u := range h.sessions {
		if s.device.Name == device && subtle.ConstantTimeCompare([]byte(s.hook), []byte(secret)) == 1 {
			return s, u
		}
	}
	return nil, hookUser{}
}

func (h *hookServer) receive(w http.ResponseWriter, r *http.Request) {
	s, user := h.find(r.PathValue("device"), r.PathValue("secret"))
	if s == nil {
		http.Error(w, "no device has this name and secret", http.StatusNotFound)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAnswer))
	if err != nil {
		http.Error(w, fmt.Sprintf("the body is not read, or has more than %d bytes", maxAnswer), http.StatusRequestEntityTooLarge)
		return
	}
	m := &jsonpath.Message{Source: "the hook", Payload: body}
	told := user.tell(user.value, s.config.order, m) + user.tell(user.event, s.config.events, m)
	if told == 0 {
		http.Error(w, "the body has no value of any property, and no event: see path in the model's visitors", http.StatusUnprocessableEntity)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// tell emits what the body says of fields that come by the hook, and counts them.
func (hookUser) tell(emit func(name, value string), fields []*field, m *jsonpath.Message) (told int) {
	if emit == nil {
		return 0
	}
	for _, f := range fields {
		if f.get != "" {
			continue
		}
		if reading, ok := f.reading(m); ok && reading.Err == nil {
			emit(f.name, reading.Value)
			told++
		}
	}
	return told
}

// Push implements mappers.Pusher.
func (s *session) Push(ctx context.Context, emit func(property, value string)) error {
	return s.listen(ctx, func(u *hookUser) { u.value = emit }, func(u *hookUser) { u.value = nil })
}

// Events implements mappers.EventSource: each message that a device sends is one.
func (s *session) Events(ctx context.Context, emit func(event, value string)) error {
	return s.listen(ctx, func(u *hookUser) { u.event = emit }, func(u *hookUser) { u.event = nil })
}

// listen takes what the device sends until ctx ends.
func (s *session) listen(ctx context.Context, begin, end func(*hookUser)) error {
	if s.hook != "" {
		if err := s.driver.hooks.change(s, begin); err != nil {
			s.device.Tell("Hooks", err.Error())
		} else {
			defer func() { _ = s.driver.hooks.change(s, end) }()
		}
	}
	<-ctx.Done()
	return nil
}
