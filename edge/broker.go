// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
)

// brokerOptions are the options of the core's broker that settings say, with the audit log.
func brokerOptions(cfg configs.Core, log zerolog.Logger) (o broker.Options, err error) {
	o = broker.Options{InsecureListen: cfg.Insecure, Limits: cfg.Limits.Limits, Node: cfg.Node.Name, Log: log}
	o.Auth.SharedGroups = cfg.Auth.SharedGroups
	for _, d := range cfg.Auth.Deny {
		o.Auth.Deny = append(o.Auth.Deny, broker.DeniedIdentity(d.Normalized()))
	}
	for _, u := range cfg.Auth.Users {
		o.Auth.Users = append(o.Auth.Users, broker.User(u))
	}
	listeners, err := cfg.MQTT.Listeners(nil)
	if err != nil {
		return o, err
	}
	for _, l := range listeners {
		o.Listeners = append(o.Listeners, broker.Listener(l))
	}
	addUnixSocket(&o, cfg, log)
	o.Audit, err = audit.New(audit.Options{File: cfg.Audit.Path(cfg.Data.Dir), Size: int(cfg.Audit.Size >> 20), Files: cfg.Audit.Files, Log: log})
	return o, err
}

// While no user of the settings is one of the host's, root is agentUser at a core's Unix socket, and the host's user of
// edgediscovery's unit is discovererUser.
const (
	agentUser      = "agent"
	discovererUser = "edgediscovery"
)

// addUnixSocket adds a core's Unix socket to the options of its broker.
func addUnixSocket(o *broker.Options, cfg configs.Core, log zerolog.Logger) {
	path, why := cfg.SocketPath()
	if inData := filepath.Join(cfg.Data.Dir, configs.SocketName); cfg.MQTT.Socket == configs.Auto && path != inData && isListening(path) {
		log.Warn().Str("socket", path).Str("instead", inData).Msg("another program listens at the Unix socket: mqtt.socket is in the data directory instead")
		path = inData
	}
	if path == "" {
		if why != "" {
			log.Info().Str("reason", why).Msg("there is no Unix socket for the programs of this host (mqtt.socket)")
		}
		return
	}
	o.Listeners = append(o.Listeners, broker.Listener{Name: "unix", Setting: "mqtt.socket", Address: "unix:" + path})
	if slices.ContainsFunc(cfg.Auth.Users, func(u configs.User) bool { return u.Local != "" }) {
		return
	}
	for _, u := range []broker.User{{Name: agentUser, Role: topics.RoleAgent, Local: "0"}, {Name: discovererUser, Role: topics.RoleDiscoverer, Local: discovererUser}} {
		if !slices.ContainsFunc(cfg.Auth.Users, func(listed configs.User) bool { return listed.Name == u.Name }) {
			o.Auth.Users = append(o.Auth.Users, u)
		}
	}
}

// isListening reports whether a program listens at a Unix socket.
func isListening(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}
