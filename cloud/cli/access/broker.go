// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// Broker is a command's access to a broker.
type Broker struct {
	Flags
	Target Target // what the flags mean, once they are resolved
}

// Register registers the flags of a command that talks to a broker.
func (b *Broker) Register(cmd *cobra.Command) { b.Flags.Register(cmd, "", "server") }

// Open resolves the flags. Nothing is sent yet.
func (b *Broker) Open() (err error) {
	b.Target, err = b.Resolve()
	return err
}

// checkMQTT says why a broker isn't asked: its address is not known, or the password would be sent in the clear.
func (p *Target) checkMQTT() error {
	if p.MQTT == "" {
		return resource.Errorf(resource.Invalid, "server", "the context has no MQTT address: give it one (edgebus context set NAME --mqtt mqtts://…), or --server")
	}
	u, err := url.Parse(p.MQTT)
	if err != nil || p.Username+p.Token+p.TokenFile == "" && u.User == nil || configs.IsLoopback(u.Hostname()) {
		return nil // the client says what is wrong with an address
	}
	if !slices.Contains([]string{"mqtts", "ssl", "tls", "wss", "unix"}, u.Scheme) {
		return resource.Errorf(resource.Invalid, "server", "the password or token would cross the network in the clear to %s: use mqtts://", u.Redacted())
	}
	return nil
}

// MQTTOptions are the options of a client of the broker, for the command what.
func (p *Target) MQTTOptions(what string) (o client.Options, err error) {
	if err := p.checkMQTT(); err != nil {
		return o, exitcode.Errorf(exitcode.Misused, "%w", err)
	}
	o = client.Options{
		Servers: []string{p.MQTT}, ClientID: fmt.Sprintf("edgebus-%s-%d-%d", what, os.Getpid(), time.Now().UnixNano()%1e6),
		User: p.Username, CleanStart: true, Backoff: client.Backoff{Min: 200 * time.Millisecond, Max: 3 * time.Second},
	}
	if o.TLS, err = p.tlsConfig(); err == nil {
		o.Password, err = p.password()
	}
	if p.Username == "" && p.Token+p.TokenFile != "" {
		o.Secret = p.bearerToken
	}
	return o, err
}

// ConnectTimeout is how long to wait for the answer to CONNECT.
const ConnectTimeout = 3 * time.Second

// WithBroker connects, calls do while the connection is up, and disconnects.
func (p *Target) WithBroker(ctx context.Context, o client.Options, do func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	up := make(chan struct{}, 1)
	o.Attempts, o.ConnectTimeout = cmp.Or(o.Attempts, 2), ConnectTimeout
	o.OnConnect = func(context.Context, bool) error {
		select {
		case up <- struct{}{}:
		default:
		}
		return nil
	}
	c, err := client.New(o)
	if err != nil {
		return exitcode.Errorf(exitcode.Misused, "%w", err)
	}
	ended := make(chan error, 1)
	go func() {
		err := c.Run(ctx)
		if err != nil {
			cancel(ConnectionError(err, p.MQTT))
		}
		ended <- err
	}()
	select {
	case <-up:
		err = do(ctx, c)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		err = cause
	}
	cancel(nil)
	<-ended
	return err
}

// ConnectionError says to which broker there is no connection, unless it has refused one.
func ConnectionError(err error, server string) error {
	var refused *client.Refused
	if errors.As(err, &refused) {
		return err
	}
	return exitcode.Errorf(exitcode.Unreachable, "no connection to %s: %w. Is the hub running, and is this the address of its MQTT listener (mqtt.listen, mqtt.tls.listen)?", server, err)
}
