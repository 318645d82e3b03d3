// SPDX-License-Identifier: Apache-2.0

package jetstream_test

import (
	"io"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/jetstream"
	"github.com/edgebus/edgebus/test/natsservers"
)

// Whoever makes the stream while the servers are still starting waits until they can.
func TestAStreamIsMadeOnceTheServersCan(t *testing.T) {
	servers := natsservers.Start(t, 3)
	servers.Kill(1)
	servers.Kill(2)
	said, w := io.Pipe()
	defer said.Close()
	o := jetstream.Options{Servers: servers.URLs()[:1], Stream: "early", Timeout: 200 * time.Millisecond, Log: zerolog.New(w)}
	made := make(chan error, 1)
	go func() {
		_, err := jetstream.Create(t.Context(), o)
		made <- err
	}()
	first := make([]byte, 1000)
	n, err := said.Read(first)
	require.NoError(t, err)
	require.Contains(t, string(first[:n]), "trying again")
	go func() { _, _ = io.Copy(io.Discard, said) }()
	servers.Restart(1)
	servers.Restart(2)
	require.NoError(t, <-made)
	_, err = jetstream.Create(t.Context(), o)
	require.ErrorContains(t, err, "If it is left from an attempt that failed, and no hub uses it: nats stream rm early")
	log, err := jetstream.Open(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, log.Close())
}
