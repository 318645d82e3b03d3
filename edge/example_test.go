// SPDX-License-Identifier: Apache-2.0

package edge_test

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge"
)

// A core in one call, in a test of your own: with a directory that is deleted afterwards, on free ports, without a hub.
// The settings are those of the command line, so `edgecore --help` lists them.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "edgecore-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	cfg, _, err := configs.Parse[configs.Core]("edgecore", "dev", []string{
		"--node-name", "n1", "--data-dir", dir, "--mqtt-listen", "127.0.0.1:0", "--mqtt-socket", "", "--http-listen", "127.0.0.1:0",
	}, io.Discard)
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	bound, ended := make(chan daemon.Addresses, 1), make(chan error, 1)
	go func() {
		ended <- edge.Run(ctx, edge.Options{Config: cfg, Log: zerolog.Nop(), Ready: func(at daemon.Addresses) { bound <- at }})
	}()
	at := <-bound

	// Any MQTT client can use it now.
	counted := make(chan client.Message, 1)
	c, err := client.New(client.Options{
		Servers: []string{"mqtt://" + at.MQTT[0].String()}, ClientID: "example",
		Subscriptions: []client.Subscription{{Filter: "plant/+/count", QoS: 1}},
		OnMessage:     func(m client.Message) { counted <- m },
	})
	if err != nil {
		panic(err)
	}
	connected, disconnect := context.WithCancel(ctx)
	closed := make(chan error, 1)
	go func() { closed <- c.Run(connected) }()
	if err := c.Publish(ctx, client.Message{Topic: "plant/line1/count", Payload: []byte("17"), QoS: 1, Retain: true}); err != nil {
		panic(err)
	}
	m := <-counted
	fmt.Println(m.Topic, string(m.Payload))

	disconnect()
	<-closed
	stop()
	fmt.Println("ended:", <-ended)
	// Output:
	// plant/line1/count 17
	// ended: <nil>
}
