// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	natsProgram    = "nats-server"
	clusterSize    = 3
	clusterSilence = 1500 * time.Millisecond // half of the default: there is no network to wait for
)

// clusterHub is one of the hubs, clusterNATS one of the servers of their log.
type (
	clusterHub  struct{ name, mqtt, http string }
	clusterNATS struct{ name, client, routes, monitor string }
)

// chooseAddresses chooses where everything listens. Ports of the defaults that are taken are replaced by free ones.
func (c *clusterDemo) chooseAddresses() {
	port := func(base, i int) string { return freeAddress(fmt.Sprintf("127.0.0.1:%d", base+i)) }
	for i := 1; i <= clusterSize; i++ { // below the ports that systems give to clients
		c.hubs = append(c.hubs, clusterHub{name: fmt.Sprint("hub-", i), mqtt: port(18830, i), http: port(18080, i)})
		c.servers = append(c.servers, clusterNATS{name: fmt.Sprint("nats-", i), client: port(14220, i), routes: port(16220, i), monitor: port(18220, i)})
	}
	c.coreMQTT, c.coreHTTP = freeAddress(c.coreMQTT), freeAddress(c.coreHTTP)
}

const natsSettings = `server_name: %[1]s
listen: "%[2]s"
http: "%[3]s"
jetstream { store_dir: "%[1]s", sync_interval: always, max_mem: 64MB, max_file: 1GB }
max_payload: 1MB
cluster { name: demo, listen: "%[4]s", routes: [%[5]s] }
`

// writeSettings writes the settings of hubs and servers into the data directory.
func (c *clusterDemo) writeSettings() error {
	var clients, routes, monitors []string
	for _, s := range c.servers {
		clients, monitors = append(clients, "nats://"+s.client), append(monitors, "http://"+s.monitor)
		routes = append(routes, fmt.Sprintf("%q", "nats://"+s.routes))
	}
	write := func(file, text string) error {
		return os.WriteFile(filepath.Join(c.dataDir, file), []byte(text), 0o600)
	}
	for _, s := range c.servers {
		if err := write(s.name+".conf", fmt.Sprintf(natsSettings, s.name, s.client, s.monitor, s.routes, strings.Join(routes, ", "))); err != nil {
			return err
		}
	}
	for _, h := range c.hubs {
		type settings map[string]any
		text, err := json.MarshalIndent(settings{ // which is YAML, too
			"data": settings{"dir": h.name},
			"mqtt": settings{"listen": h.mqtt, "websocket": settings{"listen": ""}},
			"http": settings{"listen": h.http},
			"auth": settings{"anonymous": "loopback"},
			"log":  settings{"format": "json"},
			"store": settings{"engine": "nats", "peer": settings{"listen": "127.0.0.1:0"}, "nats": settings{
				"servers": clients, "monitor": monitors, "name": h.name, "silence": clusterSilence.String(),
			}},
		}, "", "  ")
		if err != nil {
			return err
		}
		if err := write(h.name+".yaml", string(text)+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// startAll starts the log's servers, the first hub and the node, and has the other hubs join, as docs/cluster.md says.
func (c *clusterDemo) startAll(ctx context.Context) error {
	nats, err := c.findProgram(natsProgram)
	if err != nil {
		return err
	}
	if c.cloudhub, err = c.findProgram("cloudhub"); err != nil {
		return err
	}
	for _, s := range c.servers {
		if err := c.group.start(s.name, []string{nats, "-c", s.name + ".conf"}, c.dataDir); err != nil {
			return err
		}
	}
	for _, s := range c.servers {
		if err := awaitReady(ctx, "http://"+s.monitor+"/healthz"); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	first, join := c.hubs[0], "join.tgz"
	err = errors.Join(c.say("three NATS servers run"), c.runHub(ctx, first, "cluster", "init"), c.startHub(first))
	if err == nil {
		err = c.awaitServing(ctx)
	}
	if err == nil {
		err = errors.Join(c.say(first.name+" serves"), c.apply(ctx), c.startNode(), c.runHub(ctx, first, "backup", join))
	}
	for _, h := range c.hubs[1:] {
		if err == nil {
			err = errors.Join(c.runHub(ctx, h, "cluster", "join", join), c.startHub(h), c.say(h.name+" has joined"))
		}
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(c.dataDir, join))) // it has all keys
}

func (c *clusterDemo) startHub(h clusterHub) error {
	return c.group.start(h.name, []string{c.cloudhub, "--config", h.name + ".yaml"}, c.dataDir)
}

// runHub runs a command of cloudhub's, and shows it.
func (c *clusterDemo) runHub(ctx context.Context, h clusterHub, args ...string) error {
	line := "cloudhub " + strings.Join(args, " ")
	if err := c.say("$ " + line + "    # " + h.name); err != nil {
		return err
	}
	words := 1 // of the command, which options follow
	if args[0] == "cluster" {
		words = 2
	}
	all := append(append([]string{}, args[:words]...), append([]string{"--config", h.name + ".yaml"}, args[words:]...)...)
	cmd := exec.CommandContext(ctx, c.cloudhub, all...) //nolint:gosec // G204: a program of the demo
	cmd.Dir, cmd.Env = c.dataDir, cleanEnvironment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// startNode starts a node with a simulated lamp.
func (c *clusterDemo) startNode() error {
	plain := []string{"--config", os.DevNull, "--log-format", "json"}
	for _, s := range []programStep{
		{name: "edgecore", args: append(plain, "--node-name", demoNode, "--data-dir", "core", "--mqtt-listen", c.coreMQTT, "--http-listen", c.coreHTTP, "--auth-anonymous", "loopback", "--link-server", "mqtt://"+c.hubMQTT)},
		{name: "mapper-virtual", args: append(plain, "--server", "mqtt://"+c.coreMQTT)},
	} {
		path, err := c.findProgram(s.name)
		if err == nil {
			err = c.group.start(s.name, append([]string{path}, s.args...), c.dataDir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
