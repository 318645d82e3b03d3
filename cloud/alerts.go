// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"os"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/alerts"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/configs/deploy/prometheus"
	"github.com/edgebus/edgebus/topics"
)

// openAlerts makes what says what needs somebody, and sends it on.
func openAlerts(cfg configs.Hub, registry metrics.Registry, retained func(filter string) func(max int) []broker.Message, publish func(broker.Message), log zerolog.Logger) (*alerts.Alerts, error) {
	rules, err := alerts.ParseRules(prometheus.Rules)
	if err != nil {
		return nil, err
	}
	name, err := os.Hostname()
	if err != nil || len(cfg.Hub.Address) > 0 {
		name = append(cfg.Hub.Address, "hub")[0]
	}
	a, err := alerts.New(alerts.Options{
		Instance: name, Rules: rules, Metrics: registry, Publish: publish, Log: log,
		Alarms: func() func(max int) []broker.Message {
			return retained(topics.Address{Node: "+", Kind: topics.KindAlarms, Device: "+", Name: "+"}.String())
		},
		Receivers: alerts.Receivers{Webhook: alerts.Endpoint(cfg.Alerts.Webhook), Alertmanager: alerts.Endpoint(cfg.Alerts.Alertmanager), Topic: cfg.Alerts.Topic},
	})
	if err == nil {
		a.Register(registry)
	}
	return a, err
}
