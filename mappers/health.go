// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// CheckHealth asks the node's broker whether the mapper with these options, of another process, is connected to it.
func CheckHealth(ctx context.Context, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	state := ""
	options := o.client()
	options.ClientID = "health-of-" + o.Name + "-" + rand.Text()[:8] // the mapper's own would end its connection
	options.Subscriptions = []client.Subscription{{Filter: topics.Prefix + "+/mappers/" + o.Name + "/state", QoS: 1}}
	options.OnMessage = func(m client.Message) {
		if a, err := topics.Parse(m.Topic); err == nil && a.Kind == topics.KindMapperState && state == "" {
			state = string(m.Payload)
			stop()
		}
	}
	c, err := client.New(options)
	if err != nil {
		return err
	}
	switch err := c.Run(ctx); {
	case err != nil:
		return err
	case state == resource.Online:
		return nil
	case state == "":
		return errors.New("the broker did not say within 5 s that it is connected")
	}
	return fmt.Errorf("the broker says that it is %s", state)
}
