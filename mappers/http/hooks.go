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
	sessions map[*session]func(property, value string)
}

func newHookServer(address string) *hookServer {
	return &hookServer{address: address, sessions: map[*session]func(property, value string){}}
}

func (h *hookServer) add(s *session, emit func(property, value string)) error {
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
	h.sessions[s] = emit
	return nil
}

func (h *hookServer) remove(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sessions, s)
	if len(h.sessions) == 0 && h.server != nil {
		_ = h.server.Close()
		h.server = nil
	}
}

// find is the session of a device that knows the secret. Who doesn't know it isn't told whether the device is there.
func (h *hookServer) find(device, secret string) (*session, func(property, value string)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s, emit := range h.sessions {
		if s.device.Name == device && subtle.ConstantTimeCompare([]byte(s.hook), []byte(secret)) == 1 {
			return s, emit
		}
	}
	return nil, nil
}

func (h *hookServer) receive(w http.ResponseWriter, r *http.Request) {
	s, emit := h.find(r.PathValue("device"), r.PathValue("secret"))
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
	told := 0
	for _, f := range s.config.order {
		if f.get != "" {
			continue
		}
		reading, ok := f.reading(m)
		if ok && reading.Err == nil {
			emit(f.name, reading.Value)
			told++
		}
	}
	if told == 0 {
		http.Error(w, "the body has no value of any property: see path in the model's visitors", http.StatusUnprocessableEntity)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// Push implements mappers.Pusher.
func (s *session) Push(ctx context.Context, emit func(property, value string)) error {
	if s.hook == "" {
		<-ctx.Done()
		return nil
	}
	if err := s.driver.hooks.add(s, emit); err != nil {
		s.device.Tell("Hooks", err.Error())
		<-ctx.Done()
		return nil
	}
	defer s.driver.hooks.remove(s)
	<-ctx.Done()
	return nil
}
