// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	pastTime    = 24 * time.Hour
	pastStep    = 5 * time.Minute
	pastTimeout = 20 * time.Second
)

// makePast reports temperatures of the last day, before the mappers do, so that there is a curve at once. A node that was there before has a past.
func (d *demo) makePast(ctx context.Context) error {
	if d.join == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pastTimeout)
	defer cancel()
	c, err := client.New(client.Options{Servers: []string{"mqtt://" + d.coreMQTT}, ClientID: "demo-past", CleanStart: true})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { ended <- c.Run(running) }()
	defer func() { stop(); <-ended }()
	now := time.Now()
	for t := now.Add(-pastTime); t.Before(now); t = t.Add(pastStep) {
		day := 2 * math.Pi * float64(t.Hour()*60+t.Minute()-9*60) / (24 * 60)
		ripple := math.Sin(float64(t.Unix()/300) * 2.1)
		warm := min(float64(now.Sub(t))/float64(time.Hour), 1) // it goes out an hour ago, and is as cold as the simulated one begins
		for device, celsius := range map[string]float64{"thermostat": 20.5 + 1.5*math.Sin(day) + 0.3*ripple, "lamp": 21 + warm*(10+5*math.Sin(day)+ripple)} {
			m := client.Message{
				Topic:   topics.Address{Node: demoNode, Kind: topics.KindReported, Device: device, Name: "temperature"}.String(),
				Payload: []byte(strconv.FormatFloat(celsius, 'f', 1, 64)), QoS: 1,
				User: []client.UserProperty{{Key: "ts", Value: resource.FormatTime(t)}},
			}
			for err = c.Publish(ctx, m); err != nil && backoff.Sleep(ctx, 50*time.Millisecond); err = c.Publish(ctx, m) {
			} // the node gets its devices meanwhile
			if err != nil {
				return fmt.Errorf("no past could be made of %s: %w", device, err)
			}
		}
	}
	return nil
}
