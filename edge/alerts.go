// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/alerts"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/configs/deploy/prometheus"
	"github.com/edgebus/edgebus/topics"
)

// openAlerts makes what says what needs somebody on this node, with the hub out of reach as well, and sends it on.
func openAlerts(cfg configs.Core, registry metrics.Registry, retained func(filter string) func(max int) []broker.Message, publish func(broker.Message), log zerolog.Logger) (*alerts.Alerts, error) {
	rules, err := alerts.ParseRules(prometheus.Rules)
	if err != nil {
		return nil, err
	}
	a, err := alerts.New(alerts.Options{
		Instance: cfg.Node.Name, Rules: rules, Metrics: registry, Publish: publish, Log: log,
		Alarms: func() func(max int) []broker.Message {
			return retained(topics.Address{Node: cfg.Node.Name, Kind: topics.KindAlarms, Device: "+", Name: "+"}.String())
		},
		Receivers: alerts.Receivers{Webhook: alerts.Endpoint(cfg.Alerts.Webhook), Alertmanager: alerts.Endpoint(cfg.Alerts.Alertmanager), Topic: cfg.Alerts.Topic},
	})
	if err == nil {
		a.Register(registry)
	}
	return a, err
}
