// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/topics"
)

// DefaultServer is the node's broker where nothing else is said.
const DefaultServer = "mqtt://127.0.0.1:2883"

// Options configure Run. Only Name must be set.
type Options struct {
	Name    string   // the mapper's, unique on its node
	Servers []string // default DefaultServer
	User    string
	Secret  func() (string, error) // the password, asked for at each connect; nil: none
	TLS     *tls.Config

	Collect time.Duration // how often a property is read whose visitor doesn't say; default 1 s
	// CallTimeout is for one call of the driver, which is one request, where its session doesn't know better: see Timeouter. Default 1 min.
	CallTimeout time.Duration
	// OfflineAfter is how long nothing of a device has answered until it is offline, where the Device doesn't say; default three of its
	// cycles, and at least 5 s.
	OfflineAfter time.Duration
	// ConfirmWithin is how long a device may take until it has a value that was written, where its visitor doesn't say; default 5 s.
	ConfirmWithin time.Duration
	// ProbeTimeout is for a Ping while other devices of its bus are online; default 250 ms. See Pinger.
	ProbeTimeout time.Duration
	Backoff      client.Backoff // between attempts to reach a device; default 1 s to 3 s
	Retry        client.Backoff // between attempts to write a value that the device can't take at the moment; default 5 s to 60 s
	Reconnect    client.Backoff // between attempts to reach the broker; default 200 ms to 5 s

	// DriveLog is a file that gets one line of JSON before each write and command to a device, for tests and audits.
	DriveLog string

	// OnConnect is called whenever the broker has been reached; nil: nothing is. The node's Devices follow.
	OnConnect func()

	// Traces records writes to devices; nil: nobody does.
	Traces *tracing.Tracer

	Log zerolog.Logger
	Now func() time.Time // default time.Now
}

func (o Options) withDefaults() (Options, error) {
	o.Collect = cmp.Or(o.Collect, time.Second)
	o.CallTimeout = cmp.Or(o.CallTimeout, time.Minute)
	o.ConfirmWithin = cmp.Or(o.ConfirmWithin, 5*time.Second)
	o.ProbeTimeout = cmp.Or(o.ProbeTimeout, 250*time.Millisecond)
	o.Backoff = cmp.Or(o.Backoff, client.Backoff{Min: time.Second, Max: 3 * time.Second})
	o.Retry = cmp.Or(o.Retry, client.Backoff{Min: 5 * time.Second, Max: time.Minute})
	o.Reconnect = cmp.Or(o.Reconnect, client.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second})
	if len(o.Servers) == 0 {
		o.Servers = []string{DefaultServer}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case CheckName(o.Name) != nil:
		return o, CheckName(o.Name)
	case o.Collect < minCycle:
		return o, fmt.Errorf("collect cycle %s is shorter than %s", o.Collect, minCycle)
	case o.Backoff.Min <= 0 || o.Backoff.Max < o.Backoff.Min:
		return o, errors.New("backoff: min must be above 0, and max not below min")
	}
	return o, nil
}

// CheckName says what is wrong with the name of a mapper.
func CheckName(name string) error {
	if !topics.ValidName(name) {
		return fmt.Errorf("mapper name %q: %s", name, topics.NameRule())
	}
	return nil
}

// minCycle is the shortest collect cycle, so that a mistyped one does not occupy a bus.
const minCycle = 10 * time.Millisecond

// client are the options of each of the mapper's connections.
func (o Options) client() client.Options {
	return client.Options{
		Servers: o.Servers, ClientID: "mapper-" + o.Name, User: o.User, Secret: o.Secret, TLS: o.TLS,
		CleanStart: true, KeepAlive: 10 * time.Second, Backoff: o.Reconnect, Log: o.Log,
	}
}
