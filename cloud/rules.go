// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/rules"
	"github.com/edgebus/edgebus/cloud/sources"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/configs"
)

// ruleQueueBytes is what messages may have on disk that wait for the servers of Rules; then the oldest give way.
const ruleQueueBytes = 64 << 20

// newRules makes what carries out Rules. The broker is made later.
func newRules(cfg configs.Hub, registry *objects.Registry, st store.Store, commands *calls.Calls, br func() *broker.Broker, log zerolog.Logger) *rules.Engine {
	addresses := sources.New(sources.Options{Allow: parseNetworks(cfg.Rules.Allow), AllowSetting: "rules.allow"})
	return rules.New(rules.Options{
		Objects: registry.Controller("rules"), Reader: st, Writer: objects.Records(st), Tree: commands, Presence: commands,
		Publish:     func(m broker.Message) { br().Publish(m) },
		Subscribers: func(topic string) []broker.Subscriber { return br().Subscribers(topic) },
		Keep:        func(filters []string) error { return br().LinkQueue().Keep(filters) },
		Take:        func(window int) *broker.LinkConsumer { return br().LinkQueue().Open(window) },
		Dial:        addresses.CheckDial, Age: cfg.Rules.Age, Timeout: cfg.Rules.Timeout, Log: log,
	})
}
