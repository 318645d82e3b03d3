// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
)

// A client of a node's broker: it subscribes at each connect, publishes with an outcome for each message, and answers
// requests.
func Example() {
	b, err := broker.New(broker.Options{
		Listeners: []broker.Listener{{Name: "mqtt", Address: "127.0.0.1:0"}},
		Auth:      broker.Auth{Anonymous: []topics.Role{topics.RoleOperator}}, Log: zerolog.Nop(),
	})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { _ = b.Serve(ctx) }()

	var c *client.Client
	connected := make(chan struct{})
	c, err = client.New(client.Options{
		Servers: []string{"mqtt://" + b.Addrs()[0].String()}, ClientID: "doubler",
		Subscriptions: []client.Subscription{{Filter: "double", QoS: 1}},
		OnConnect: func(context.Context, bool) error {
			close(connected)
			return nil
		},
		// One message at a time: a message of QoS 1 is acknowledged when OnMessage has returned.
		OnMessage: func(m client.Message) {
			c.PublishAsync(client.Message{Topic: m.ResponseTopic, Correlation: m.Correlation, Payload: append(m.Payload, m.Payload...)}, nil)
		},
	})
	if err != nil {
		panic(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	<-connected

	answer, err := c.Request(ctx, client.Message{Topic: "double", Payload: []byte("ha"), QoS: 1})
	fmt.Println(string(answer.Payload), err)

	// What the broker refuses is a *Refused, with the broker's reason.
	err = c.Publish(ctx, client.Message{Topic: "v1/nodes/n1/nonsense", QoS: 1})
	var refused *client.Refused
	fmt.Println(errors.As(err, &refused), refused.Reason)

	stop()
	fmt.Println("ended:", <-ended)
	// Output:
	// haha <nil>
	// true no such topic below the node: topic "v1/nodes/n1/nonsense"
	// ended: <nil>
}
