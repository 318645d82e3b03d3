// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/wire"
)

// echoHandler finds what it is told, and what its channel has.
type echoHandler struct{ more chan string }

func (e echoHandler) Discover(ctx context.Context, details string, properties map[string][]byte, found func([]handler.Device)) error {
	switch details {
	case "bad":
		return handler.InvalidArgument("discoveryDetails: bad: must be good")
	case "panic":
		panic("oh")
	case "down":
		return errors.New("the network is down")
	}
	devices := []handler.Device{{ID: details, Properties: map[string]string{"USER": string(properties["user"])}}}
	found(devices)
	found(devices)
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-e.more:
			devices = append(devices[:len(devices):len(devices)], handler.Device{ID: id})
			found(devices)
		}
	}
}

func socketDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "eb") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func serveHandler(t *testing.T, o handler.Options, more chan string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	o.Ready, o.Env.Log = func() { close(ready) }, zerolog.Nop()
	program := handler.Program{Name: "echo", Shared: true, New: func(handler.Env) handler.Handler { return echoHandler{more} }}
	go func() { done <- handler.Serve(ctx, program, o) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	<-ready
}

// receiveRegistrations is edgediscovery as far as handlers register there; stop ends it.
func receiveRegistrations(t *testing.T, dir string) (got chan wire.Registration, stop func()) {
	t.Helper()
	path := filepath.Join(dir, handler.RegistrationSocket)
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	s := rawgrpc.NewServer()
	got = make(chan wire.Registration, 10)
	wire.ServeRegistration(s, func(_ context.Context, r wire.Registration) error {
		got <- r
		return nil
	})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return got, s.Stop
}

func TestServe(t *testing.T) {
	dir := socketDir(t)
	more := make(chan string)
	serveHandler(t, handler.Options{Dir: dir}, more)
	// edgediscovery comes later than the handler, and then again.
	for range 2 {
		got, stop := receiveRegistrations(t, dir)
		select {
		case r := <-got:
			require.Equal(t, wire.Registration{Contract: wire.ContractV0, Name: "echo", Endpoint: filepath.Join(dir, "echo.sock"), Shared: true}, r)
		case <-time.After(30 * time.Second):
			require.FailNow(t, "the handler did not register")
		}
		stop()
	}
	conn, err := wire.Dial("unix://"+filepath.Join(dir, "echo.sock"), nil)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()

	ask := func(c wire.Contract, r wire.Request, enough int) (lists []wire.Devices, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		stop := errors.New("enough")
		err = wire.Discover(ctx, conn, c, r, func(b []byte) error {
			var list wire.Devices
			require.NoError(t, wire.EachDevice(b, func(d wire.Device, wrong error) {
				require.NoError(t, wrong)
				list = append(list, d)
			}))
			if lists = append(lists, list); len(lists) == enough {
				return stop
			}
			more <- "another"
			return nil
		})
		if errors.Is(err, stop) {
			err = nil
		}
		return lists, err
	}
	lists, err := ask(wire.ContractV0, wire.Request{Details: "lamp", Properties: map[string][]byte{"user": []byte("me")}}, 2)
	require.NoError(t, err)
	require.Equal(t, []wire.Devices{
		{{ID: "lamp", Properties: map[string]string{"USER": "me"}}},
		{{ID: "lamp", Properties: map[string]string{"USER": "me"}}, {ID: "another"}}, // a list that was the same was not sent
	}, lists)
	lists, err = ask(wire.ContractProposal, wire.Request{DetailsMap: map[string]string{"protocolHandler": "lamp"}}, 1)
	require.NoError(t, err)
	require.Equal(t, "lamp", lists[0][0].ID)

	_, err = ask(wire.ContractV0, wire.Request{Details: "bad"}, 1)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.Equal(t, "discoveryDetails: bad: must be good", status.Convert(err).Message())
	_, err = ask(wire.ContractV0, wire.Request{Details: "panic"}, 1)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "panicked: oh")
	_, err = ask(wire.ContractV0, wire.Request{Details: "down"}, 1)
	require.ErrorContains(t, err, "the network is down")
}

func TestServeRefusesWhatOthersCouldRead(t *testing.T) {
	p := handler.Program{Name: "echo", New: func(handler.Env) handler.Handler { return echoHandler{} }}
	err := handler.Serve(t.Context(), p, handler.Options{Dir: socketDir(t), Listen: "0.0.0.0:0"})
	require.ErrorContains(t, err, "mutual TLS only")
	err = handler.Serve(t.Context(), p, handler.Options{Dir: socketDir(t), Server: "192.0.2.1:7400"})
	require.ErrorContains(t, err, "mutual TLS only")
}

func TestOneHandlerAtASocket(t *testing.T) {
	dir := socketDir(t)
	serveHandler(t, handler.Options{Dir: dir}, nil)
	p := handler.Program{Name: "echo", New: func(handler.Env) handler.Handler { return echoHandler{} }}
	require.ErrorContains(t, handler.Serve(t.Context(), p, handler.Options{Dir: dir}), "another program serves at")
}

// A program that is told to stop while it starts ends without an error.
func TestAHandlerIsStoppedAsItStarts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := handler.Program{Name: "echo", New: func(handler.Env) handler.Handler { return echoHandler{} }}
	for range 20 {
		require.NoError(t, handler.Serve(ctx, p, handler.Options{Dir: socketDir(t)}))
	}
}

func TestDetailsText(t *testing.T) {
	require.Equal(t, "", handler.DetailsText(nil))
	require.Equal(t, "a: b", handler.DetailsText(map[string]string{"protocolHandler": "a: b"}))
	require.Equal(t, "a: \"1\"\nb: x\n", handler.DetailsText(map[string]string{"a": "1", "b": "x"}))
}
