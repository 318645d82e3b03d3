// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/wire"
)

const (
	// registrationsName is the file of those that have registered, in the data directory.
	registrationsName = "registrations.json"
	// maxEndpoints bounds how many there are.
	maxEndpoints = 64
	// forgetAfter is how long a handler must be away before a new one may replace it when the maximum is reached.
	forgetAfter = time.Hour
)

// endpoint is a handler: one that is linked in, or one that has registered. discovery.mu guards seen and woken.
type endpoint struct {
	name    string
	key     string // what reports call it: its address, or embedded
	shared  bool
	program handler.Handler // nil: it is dialled
	dialled wire.Registration
	conn    *grpc.ClientConn
	probe   func() (*grpc.ClientConn, error) // a connection of its own
	seen    time.Time                        // when it last registered or answered
	woken   chan struct{}                    // closed when it registers again
}

// registeredHandler is an endpoint in the file.
type registeredHandler struct {
	wire.Registration
	Seen time.Time `json:"seen"`
}

// loadHandlers has the handlers that are linked in, and those that registered before this start.
func (d *discovery) loadHandlers() error {
	for _, p := range d.o.Embedded {
		if !slices.ContainsFunc(d.o.Config.Handlers.Embedded, func(glob string) bool { ok, _ := path.Match(glob, p.Name); return ok }) {
			continue
		}
		env := handler.Env{Log: d.log.With().Str("handler", p.Name).Logger(), Broker: d.o.Config.MQTT.Sockets()}
		key := "embedded/" + p.Name
		d.endpoints[key] = &endpoint{name: p.Name, key: key, shared: p.Shared, program: p.New(env), woken: make(chan struct{})}
	}
	file := filepath.Join(d.o.Config.Data.Dir, registrationsName)
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var list []registeredHandler
	if err := json.Unmarshal(text, &list); err != nil {
		d.log.Error().Err(err).Str("file", file).Msg("the registrations can't be read: handlers must register again")
		return nil
	}
	for _, r := range list {
		e, err := d.newEndpoint(r.Registration, true)
		if err != nil {
			d.log.Error().Err(err).Str("handler", r.Name).Msg("a handler that had registered is dropped")
			continue
		}
		e.seen = r.Seen
		d.endpoints[e.key] = e
	}
	return nil
}

// saveHandlers writes the file. mu is held.
func (d *discovery) saveHandlers() error {
	list := []registeredHandler{}
	for _, e := range d.endpoints {
		if e.program == nil {
			list = append(list, registeredHandler{e.dialled, e.seen.UTC()})
		}
	}
	text, err := json.MarshalIndent(list, "", " ")
	if err != nil {
		return err
	}
	return datadir.WriteFile(filepath.Join(d.o.Config.Data.Dir, registrationsName), text)
}

func (d *discovery) closeHandlers() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.endpoints {
		e.close()
	}
}

func (e *endpoint) close() {
	if e.conn != nil {
		_ = e.conn.Close() // nothing is lost by it
	}
}

// newEndpoint is a handler as it registers; local: at the socket.
func (d *discovery) newEndpoint(r wire.Registration, local bool) (*endpoint, error) {
	if err := wire.CheckName(r.Name); err != nil {
		return nil, err
	}
	target, err := d.target(r, local)
	if err != nil {
		return nil, err
	}
	r.Endpoint = strings.TrimPrefix(target, "unix://")
	dial := func() (*grpc.ClientConn, error) {
		if r.Network {
			return wire.Dial(target, d.client)
		}
		return wire.Dial(target, nil)
	}
	conn, err := dial()
	if err != nil {
		return nil, fmt.Errorf("the endpoint %q: %w", r.Endpoint, err)
	}
	return &endpoint{
		name: r.Name, key: r.Endpoint, shared: r.Shared, dialled: r, conn: conn, probe: dial, seen: time.Now(), woken: make(chan struct{}),
	}, nil
}

// target is what to dial for a registration: a socket in the directory, or an address at which TLS keeps others away.
func (d *discovery) target(r wire.Registration, local bool) (string, error) {
	if !r.Network {
		name := filepath.Base(r.Endpoint)
		switch {
		case !local:
			return "", fmt.Errorf("the endpoint %q is a socket: a handler that registers over TCP has a network address", r.Endpoint)
		case name == "." || name == ".." || name == "/" || name == handler.RegistrationSocket || len(name) > wire.MaxName:
			return "", fmt.Errorf("the endpoint %q: must be a socket in %s, such as %s/onvif.sock", r.Endpoint, d.o.Config.Handlers.Dir, d.o.Config.Handlers.Dir)
		}
		socket := filepath.Join(d.o.Config.Handlers.Dir, name)
		if len(socket) > 107 {
			return "", fmt.Errorf("the endpoint %s has a path of more than 107 bytes", socket)
		}
		return "unix://" + socket, nil
	}
	address := r.Endpoint
	if u, err := url.Parse(address); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
		address = u.Host
	}
	if err := wire.CheckAddress(address); err != nil {
		return "", fmt.Errorf("the endpoint %q: %w", r.Endpoint, err)
	}
	if d.client == nil && !wire.IsLoopback(address) {
		return "", fmt.Errorf("the endpoint %q is not an address of loopback: edgediscovery dials it with mutual TLS only (tcp.tls)", r.Endpoint)
	}
	return address, nil
}

// register takes a registration. A repeated one ends the pauses before the handler is asked again.
func (d *discovery) register(r wire.Registration, local bool) error {
	e, err := d.newEndpoint(r, local)
	if err != nil {
		d.log.Warn().Err(err).Msg("a handler can't register")
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.endpoints[e.key]
	if before != nil && before.dialled == e.dialled {
		e.close()
		before.seen = time.Now()
		close(before.woken)
		before.woken = make(chan struct{})
		before.conn.ResetConnectBackoff()
		return nil
	}
	if before == nil && !d.makeRoom() {
		e.close()
		return fmt.Errorf("there are %d handlers already", maxEndpoints)
	}
	d.endpoints[e.key] = e
	if err := d.saveHandlers(); err != nil {
		d.endpoints[e.key] = before
		if before == nil {
			delete(d.endpoints, e.key)
		}
		e.close()
		d.log.Error().Err(err).Msg("the registration of a handler can't be stored")
		return errors.New("the registration can't be stored")
	}
	if before != nil {
		before.close()
	}
	d.log.Info().Str("handler", e.name).Str("endpoint", e.key).Bool("shared", e.shared).Msg("a handler has registered")
	for _, c := range d.configurations {
		d.reconcile(c)
	}
	return nil
}

// makeRoom reports whether one more handler may register. At the maximum it removes the one that has been away for longest, if that
// is forgetAfter at least. mu is held.
func (d *discovery) makeRoom() bool {
	count := 0
	var oldest *endpoint
	for _, e := range d.endpoints {
		if e.program != nil {
			continue
		}
		if count++; oldest == nil || e.seen.Before(oldest.seen) {
			oldest = e
		}
	}
	if count < maxEndpoints {
		return true
	}
	if time.Since(oldest.seen) < forgetAfter {
		return false
	}
	delete(d.endpoints, oldest.key)
	oldest.close()
	return true
}

// makeSocketDir makes the directory of the sockets, for programs of this one's group.
func makeSocketDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o770); err != nil { //nolint:gosec // G301: the group is that of the programs which may be handlers
		return err
	}
	return os.Chmod(dir, 0o770) //nolint:gosec // G302: the same, whatever the umask
}
