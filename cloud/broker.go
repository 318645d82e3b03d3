// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/configs"
)

// newBrokerOptions are the options of the hub's broker that settings say, with the audit log.
func newBrokerOptions(cfg configs.Hub, log zerolog.Logger) (o broker.Options, err error) {
	o = broker.Options{InsecureListen: cfg.Insecure, Limits: cfg.Limits.Limits, Down: cfg.Bridge.Down, Log: log}
	o.Auth.SharedGroups = cfg.Auth.SharedGroups
	for _, d := range cfg.Auth.Deny {
		o.Auth.Deny = append(o.Auth.Deny, broker.DeniedIdentity(d.Normalized()))
	}
	for _, u := range cfg.Auth.Users {
		o.Auth.Users = append(o.Auth.Users, broker.User(u))
	}
	if o.Listeners, err = mqttListeners(cfg); err != nil {
		return o, err
	}
	o.Audit, err = audit.New(audit.Options{File: cfg.Audit.Path(cfg.Data.Dir), Size: int(cfg.Audit.Size >> 20), Files: cfg.Audit.Files, Log: log})
	return o, err
}

// mqttListeners are those that settings say.
func mqttListeners(cfg configs.Hub) (all []broker.Listener, err error) {
	listeners, err := cfg.MQTT.Listeners(cfg.HTTP.Ports())
	for _, l := range listeners {
		all = append(all, broker.Listener(l))
	}
	return all, err
}
