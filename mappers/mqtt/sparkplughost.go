// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"context"
	"encoding/json"
	"time"

	"github.com/edgebus/edgebus/broker/client"
)

// hostState is what a host application of Sparkplug B 3.0 says of itself, retained on spBv1.0/STATE/{host}: edge nodes of which it is the primary host store
// their data while it is offline. The will says offline with the time at which the connection began.
type hostState struct {
	Online    bool  `json:"online"`
	Timestamp int64 `json:"timestamp"` // milliseconds since 1970
}

const stateTopic = "spBv1.0/STATE/"

func (d *Driver) hostMessage(online bool, at time.Time) client.Message {
	payload, _ := json.Marshal(hostState{online, at.UnixMilli()}) // a truth value and a number can be written
	return client.Message{Topic: stateTopic + d.o.SparkplugHost, Payload: payload, QoS: 1, Retain: true}
}

// beginHost says in the will of the connections from now on that the host is offline. mu is held.
func (d *Driver) beginHost(c *client.Client) error {
	if d.o.SparkplugHost == "" || c == nil {
		return nil
	}
	d.hostSince = time.Now()
	return c.SetWill(d.hostMessage(false, d.hostSince))
}

// bearHost says that the host is online. It hears it if somebody says otherwise.
func (d *Driver) bearHost(ctx context.Context, c *client.Client) error {
	if d.o.SparkplugHost == "" || c == nil {
		return nil
	}
	d.mu.Lock()
	since := d.hostSince
	d.mu.Unlock()
	if err := c.Subscribe(ctx, client.Subscription{Filter: stateTopic + d.o.SparkplugHost, QoS: 1}); err != nil {
		return err
	}
	return c.Publish(ctx, d.hostMessage(true, since))
}

// hearHost says again that the host is online if another says, or the broker after another connection's end, that it isn't. mu is held.
func (d *Driver) hearHost(m client.Message) {
	var said hostState
	if d.mqtt == nil || m.Retained || json.Unmarshal(m.Payload, &said) == nil && said.Online {
		return
	}
	d.mqtt.PublishAsync(d.hostMessage(true, d.hostSince), nil)
}

// endHost says that the host is offline before its connection ends as it should, of which the broker doesn't tell by the will.
func (d *Driver) endHost(c *client.Client) {
	if d.o.SparkplugHost == "" || c == nil || !c.Connected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := c.Unsubscribe(ctx, stateTopic+d.o.SparkplugHost)
	if err == nil {
		err = c.Publish(ctx, d.hostMessage(false, time.Now()))
	}
	if err != nil {
		d.o.Broker.Log.Debug().Err(err).Msg("it isn't said that the host is offline")
	}
}
