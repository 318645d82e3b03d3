// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/discovery/wire"
)

// RegistrationSocket is the name of edgediscovery's socket in its directory.
const RegistrationSocket = "agent-registration.sock"

// Options are what a stand-alone handler needs besides its Program.
type Options struct {
	// Dir has edgediscovery's socket, and gets the handler's.
	Dir string
	// Listen is a TCP address to serve at instead, Advertise the one that edgediscovery is given if it is another, and Server that of
	// edgediscovery if it is not at its socket. TLS is needed for all addresses that are not of loopback.
	Listen, Advertise, Server string
	TLS                       configs.TLSClient
	Env                       Env
	// Ready is called once the handler listens. It may be nil.
	Ready func()
}

// Call calls h.Discover. A panic of it is an error.
func Call(ctx context.Context, h Handler, details string, properties map[string][]byte, found func([]Device)) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the handler panicked: %v\n%s", r, debug.Stack())
		}
	}()
	return h.Discover(ctx, details, properties, found)
}

// CallResumer is Call of a handler that has found devices for the Configuration before.
func CallResumer(ctx context.Context, h Resumer, details string, properties map[string][]byte, known []Device, found func([]Device)) (err error) {
	return Call(ctx, resumedHandler{h, known}, details, properties, found)
}

// resumedHandler is a handler whose calls go on after known devices.
type resumedHandler struct {
	Resumer
	known []Device
}

func (r resumedHandler) Discover(ctx context.Context, details string, properties map[string][]byte, found func([]Device)) error {
	return r.Resume(ctx, details, properties, r.known, found)
}

// DetailsText is the one text that a handler is given for the details of a Configuration: the value if there is one, else all as YAML.
func DetailsText(details map[string]string) string {
	if len(details) == 1 {
		for _, only := range details {
			return only
		}
	}
	if len(details) == 0 {
		return ""
	}
	text, _ := yaml.Marshal(details) // strings
	return string(text)
}

// Serve runs a handler as a program of its own until ctx ends: it serves gRPC, and registers at edgediscovery, again whenever
// edgediscovery was away.
func Serve(ctx context.Context, p Program, o Options) error {
	listener, serverTLS, err := o.listen(p.Name)
	if err != nil {
		return err
	}
	registration, conn, err := o.registration(p, listener)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	var options []grpc.ServerOption
	if serverTLS != nil {
		options = append(options, grpc.Creds(serverTLS))
	}
	server := rawgrpc.NewServer(options...)
	h := p.New(o.Env)
	wire.ServeHandler(server, func(ctx context.Context, r wire.Request, c wire.Contract, send func(d wire.Devices, told string) error) error {
		if c == wire.ContractProposal {
			r.Details = DetailsText(r.DetailsMap)
		}
		return answerCall(ctx, h, r, send, o.Env.Log)
	})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return rawgrpc.Serve(server, listener) })
	g.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return conn.Close()
	})
	g.Go(func() error {
		keepRegistered(ctx, conn, registration, o.Env.Log)
		return nil
	})
	if o.Ready != nil {
		o.Ready()
	}
	return g.Wait()
}

// answerCall answers one call of edgediscovery.
func answerCall(ctx context.Context, h Handler, r wire.Request, send func(d wire.Devices, told string) error, log zerolog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var sent []Device
	any := false
	told, toldBefore := "", ""
	ctx = WithTell(ctx, func(message string) {
		mu.Lock()
		defer mu.Unlock()
		told = message
	})
	err := Call(ctx, h, r.Details, r.Properties, func(devices []Device) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil || any && told == toldBefore && (len(devices) == 0 && len(sent) == 0 || reflect.DeepEqual(devices, sent)) {
			return
		}
		if err := send(devices, told); err != nil {
			cancel(err)
		}
		sent, any, toldBefore = devices, true, told
	})
	switch {
	case err == nil:
		return nil
	case IsInvalidArgument(err):
		return status.Error(codes.InvalidArgument, err.Error())
	case ctx.Err() == nil:
		log.Error().Err(err).Msg("discovery failed, and edgediscovery will ask again")
	}
	return status.Error(codes.Unavailable, err.Error())
}

func (o Options) listen(name string) (net.Listener, credentials.TransportCredentials, error) {
	if o.Listen == "" {
		l, err := rawgrpc.ListenUnix(filepath.Join(o.Dir, name+".sock"))
		return l, nil, err
	}
	server, _, err := wire.MutualTLS(o.TLS)
	if err != nil {
		return nil, nil, err
	}
	if server == nil && !wire.IsLoopback(o.Listen) {
		return nil, nil, fmt.Errorf("%s is not an address of loopback: it is served with mutual TLS only (--tls-cert, --tls-key, --tls-ca)", o.Listen)
	}
	l, err := net.Listen("tcp", o.Listen)
	return l, server, err
}

// registration is what edgediscovery is told, and the connection to it.
func (o Options) registration(p Program, l net.Listener) (wire.Registration, *grpc.ClientConn, error) {
	r := wire.Registration{Contract: wire.ContractV0, Name: p.Name, Endpoint: l.Addr().String(), Shared: p.Shared}
	if r.Network = o.Listen != ""; r.Network {
		if o.Advertise != "" {
			r.Endpoint = o.Advertise
		}
	} else if path, err := filepath.Abs(r.Endpoint); err == nil {
		r.Endpoint = path
	}
	if o.Server == "" {
		conn, err := wire.Dial("unix://"+filepath.Join(o.Dir, RegistrationSocket), nil)
		return r, conn, err
	}
	_, client, err := wire.MutualTLS(o.TLS)
	if err != nil {
		return r, nil, err
	}
	if client == nil && !wire.IsLoopback(o.Server) {
		return r, nil, fmt.Errorf("%s is not an address of loopback: it is dialled with mutual TLS only (--tls-cert, --tls-key, --tls-ca)", o.Server)
	}
	conn, err := wire.Dial(o.Server, client)
	return r, conn, err
}

// keepRegistered registers at each new connection to edgediscovery.
func keepRegistered(ctx context.Context, conn *grpc.ClientConn, r wire.Registration, log zerolog.Logger) {
	said := ""
	for ctx.Err() == nil {
		conn.Connect()
		state := conn.GetState()
		if state != connectivity.Ready {
			conn.WaitForStateChange(ctx, state)
			continue
		}
		err := wire.Register(ctx, conn, r)
		switch text := status.Convert(err).Message(); {
		case err == nil:
			log.Info().Str("name", r.Name).Str("endpoint", r.Endpoint).Msg("registered at edgediscovery")
			said = ""
			conn.WaitForStateChange(ctx, connectivity.Ready)
			continue
		case ctx.Err() == nil && text != said:
			log.Error().Str("error", text).Msg("edgediscovery does not take the registration; it is tried again")
			said = text
		}
		wait, cancel := context.WithTimeout(ctx, 5*time.Second)
		conn.WaitForStateChange(wait, connectivity.Ready)
		cancel()
	}
}
