// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
)

func TestUplinkRecordsConnections(t *testing.T) {
	u := newLinkStatus()
	hub, err := client.New(client.Options{Servers: []string{"mqtt://hub"}, ClientID: "node/n1"})
	require.NoError(t, err)
	var heard []string
	o := u.watch(client.Options{
		OnConnect:    func(context.Context, bool) error { heard = append(heard, "up"); return nil },
		OnDisconnect: func(error) { heard = append(heard, "down") },
		OnMessage:    func(client.Message) { heard = append(heard, "message") },
	}, &hub)
	o.OnConnectError(errors.New("connection refused"))
	require.Equal(t, "connection refused", u.now().lastError)
	require.Equal(t, 1, u.now().failures)
	require.False(t, u.now().up)

	require.NoError(t, o.OnConnect(t.Context(), false))
	o.OnMessage(client.Message{})
	c := u.now()
	require.True(t, c.up)
	require.Equal(t, 1, c.connections)
	require.Equal(t, "mqtt://hub", c.server)
	require.False(t, c.lastPacket.Before(c.since))
	o.OnDisconnect(errors.New("keep-alive timeout"))
	require.False(t, u.now().up)
	require.Equal(t, "keep-alive timeout", u.now().lastError)
	require.Equal(t, []string{"up", "message", "down"}, heard, "and nobody is kept from hearing it")
}

func TestSecondConnectionLogsNothingWhileTheFirstIsDown(t *testing.T) {
	var lines bytes.Buffer
	u := newLinkStatus()
	log := u.logWhileUp(zerolog.New(&lines)).With().Str("connection", "bridge").Logger()
	log.Warn().Msg("no MQTT connection")
	require.Empty(t, lines.String())
	u.note(func(c *linkState) { c.up = true })
	log.Warn().Msg("no MQTT connection")
	require.JSONEq(t, `{"level":"warn","connection":"bridge","message":"no MQTT connection"}`, lines.String())
}
