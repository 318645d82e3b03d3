// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/selfsigned"
	"github.com/edgebus/edgebus/topics"
)

// newCertificate makes one for 127.0.0.1, and the pool that trusts it.
func newCertificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	cert, key := selfsigned.NewPEM(t, "server", "127.0.0.1")
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(cert))
	return pair, pool
}

// startServers starts a broker and returns its URL for each scheme.
func startServers(t *testing.T) (urls map[string]string, trust *tls.Config) {
	cert, pool := newCertificate(t)
	secure := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	dir, err := os.MkdirTemp("", "eb") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "mqtt.sock")
	b, err := broker.New(broker.Options{
		Listeners: []broker.Listener{
			{Name: "mqtt", Address: "127.0.0.1:0"},
			{Name: "mqtts", Address: "127.0.0.1:0", TLS: secure},
			{Name: "ws", Address: "127.0.0.1:0", WebSocket: true},
			{Name: "wss", Address: "127.0.0.1:0", TLS: secure, WebSocket: true},
			{Name: "unix", Address: "unix:" + socket},
		},
		Auth: broker.Auth{
			Anonymous: []topics.Role{topics.RoleOperator},
			Users:     []broker.User{{Name: "me", Role: topics.RoleOperator, Nodes: []string{"*"}, Local: strconv.Itoa(os.Getuid())}},
		}, Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		closing, stop := context.WithTimeout(context.Background(), 30*time.Second)
		defer stop()
		_ = b.Close(closing)
		<-done
	})
	urls = map[string]string{"unix": "unix://" + socket}
	for i, scheme := range []string{"mqtt", "mqtts", "ws", "wss"} {
		urls[scheme] = scheme + "://" + b.Addrs()[i].String()
	}
	return urls, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

func runClient(t *testing.T, o client.Options) (c *client.Client, stop func()) {
	t.Helper()
	c, err := client.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	return c, stop
}

func receiveFrom[T any](t *testing.T, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(30 * time.Second):
		require.FailNow(t, "nothing came")
	}
	return v
}

func TestRealBrokerOverEveryTransport(t *testing.T) {
	urls, trust := startServers(t)
	for scheme, url := range urls {
		t.Run(scheme, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			got, ready := make(chan client.Message, 2000), make(chan bool, 1)
			c, _ := runClient(t, client.Options{
				Servers: []string{url}, ClientID: scheme, CleanStart: true, TLS: trust,
				Subscriptions: []client.Subscription{{Filter: scheme + "/#", QoS: 2}},
				OnConnect:     func(context.Context, bool) error { ready <- true; return nil },
				OnMessage:     func(m client.Message) { got <- m },
			})
			receiveFrom(t, ready)
			large := make([]byte, 300_000)
			require.NoError(t, c.Publish(ctx, client.Message{Topic: scheme + "/large", Payload: large, QoS: 2, User: []client.UserProperty{{Key: "a", Value: "b"}}}))
			m := receiveFrom(t, got)
			require.Len(t, m.Payload, len(large))
			require.Equal(t, "b", m.Property("a"))
			const n = 1000
			ends := make(chan error, n)
			for i := range n {
				c.PublishAsync(client.Message{Topic: scheme + "/n", Payload: []byte(strconv.Itoa(i)), QoS: byte(i % 3)}, func(err error) { ends <- err })
			}
			for range n {
				require.NoError(t, receiveFrom(t, ends))
			}
			for i := range n {
				require.Equal(t, strconv.Itoa(i), string(receiveFrom(t, got).Payload))
			}
		})
	}
}

func TestSessionOutlivesTheConnection(t *testing.T) {
	urls, _ := startServers(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	o := client.Options{Servers: []string{urls["mqtt"]}, ClientID: "keeper", SessionExpiry: time.Hour}
	c, stop := runClient(t, o)
	require.NoError(t, c.Subscribe(ctx, client.Subscription{Filter: "kept/#", QoS: 1}))
	stop()
	sender, _ := runClient(t, client.Options{Servers: []string{urls["mqtt"]}, ClientID: "sender", CleanStart: true})
	for i := range 100 {
		require.NoError(t, sender.Publish(ctx, client.Message{Topic: "kept/a", Payload: []byte(strconv.Itoa(i)), QoS: 1}))
	}
	got, present := make(chan client.Message, 100), make(chan bool, 1)
	o.OnMessage = func(m client.Message) { got <- m }
	o.OnConnect = func(_ context.Context, p bool) error { present <- p; return nil }
	runClient(t, o)
	require.True(t, receiveFrom(t, present))
	for i := range 100 {
		require.Equal(t, strconv.Itoa(i), string(receiveFrom(t, got).Payload))
	}
}

func TestUntrustedServerIsNamed(t *testing.T) {
	urls, _ := startServers(t)
	c, err := client.New(client.Options{Servers: []string{urls["mqtts"]}, CleanStart: true, Attempts: 1})
	require.NoError(t, err)
	err = c.Run(t.Context())
	require.ErrorContains(t, err, "certificate")
	require.ErrorContains(t, err, urls["mqtts"])
}
