// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/audit"
	mqtt "github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
)

func TestTheProgramItselfIsAClientWithTheRightsOfItsUserAndIsRecorded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.New(audit.Options{File: file, Size: 1, Files: 1, Log: zerolog.Nop()})
	require.NoError(t, err)
	logged := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { logged <- log.Run(ctx) }()
	b := startBroker(t, func(o *Options) { o.Node, o.Audit, o.Tree = "n1", log, newFakeTree() })
	got := make(chan mqtt.Message, 10)
	connected := make(chan struct{}, 1)
	c, err := mqtt.New(mqtt.Options{
		Servers: []string{"mqtt://program"}, ClientID: "view-x", CleanStart: true, Log: zerolog.Nop(),
		Dial: func(context.Context, string, string) (net.Conn, error) {
			return b.Dial(Identity{User: "view-x", Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"n1"}}), nil
		},
		Subscriptions: []mqtt.Subscription{{Filter: "a/#", QoS: 1}},
		OnConnect:     func(context.Context, bool) error { connected <- struct{}{}; return nil },
		OnMessage:     func(m mqtt.Message) { got <- m },
	})
	require.NoError(t, err)
	running, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(running) }()
	<-connected
	require.NoError(t, c.Publish(ctx, mqtt.Message{Topic: "a/b", Payload: []byte("1"), QoS: 1}))
	require.Equal(t, "1", string((<-got).Payload))
	require.NoError(t, c.Publish(ctx, mqtt.Message{Topic: "v1/nodes/n1/devices/lamp/desired/power", Payload: []byte("ON"), QoS: 1}))
	var refused *mqtt.Refused
	require.ErrorAs(t, c.Publish(ctx, mqtt.Message{Topic: "v1/nodes/n1/devices/lamp/reported/power", Payload: []byte("ON"), QoS: 1}), &refused)
	require.ErrorAs(t, c.Publish(ctx, mqtt.Message{Topic: "v1/nodes/n2/devices/lamp/desired/power", Payload: []byte("ON"), QoS: 1}), &refused)

	other := dialClient(t, b, "view-x")
	require.NotZero(t, other, "nobody else may have the identifier")
	end()
	require.NoError(t, <-ended)
	stop()
	require.NoError(t, <-logged)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), `"user":"view-x"`)
	require.Contains(t, string(text), `devices/lamp/desired/power`)
}

// dialClient connects over the network with a client identifier, and returns the reason code of the refusal.
func dialClient(t *testing.T, b *Broker, id string) byte {
	t.Helper()
	c, err := mqtt.New(mqtt.Options{Servers: []string{"mqtt://" + b.Addrs()[0].String()}, ClientID: id, CleanStart: true, Attempts: 1, Log: zerolog.Nop()})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	refused := mqtt.ConnectRefused(c.Run(ctx))
	require.NotNil(t, refused)
	return refused.Code
}
