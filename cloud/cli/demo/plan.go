// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/program"
	hubclient "github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/backoff"
)

// programStep is a program of the demo, and what must answer before the next one starts.
type programStep struct {
	name    string // and its log's
	program string // if it isn't the name
	args    []string
	ready   string // host:port that accepts, or a URL that answers 200
}

// plan lists the programs in the order of their start.
func (d *demo) plan() ([]programStep, error) {
	hubURL, coreURL := "mqtts://"+d.hubTLS, "mqtt://"+d.coreMQTT
	if d.link != nil {
		hubURL = "mqtts://" + d.link.listener.Addr().String()
	}
	// The demo doesn't depend on this host's configuration files and environment.
	plain := []string{"--config", os.DevNull, "--log-format", "json"}
	open := []string{"--auth-anonymous", "loopback"}
	steps := []programStep{
		{name: "cloudhub", args: append([]string{
			"--data-dir", "hub", "--mqtt-listen", d.hubMQTT, "--http-listen", d.hubHTTP, "--mqtt-websocket-listen", "",
			"--mqtt-tls-listen", d.hubTLS,
		}, slices.Concat(plain, open)...), ready: "http://" + d.hubHTTP + "/readyz"},
		{name: "edgecore", args: append([]string{
			"--config", joinedConfig, "--data-dir", "core", "--mqtt-listen", d.coreMQTT, "--http-listen", d.coreHTTP,
			"--link-server", hubURL, "--log-format", "json",
		}, open...), ready: "http://" + d.coreHTTP + "/readyz"},
		{name: "simulator", program: "mapper-modbus", args: []string{"simulate", "--listen", d.modbus}, ready: d.modbus},
		{name: "mapper-virtual", args: append([]string{"--server", coreURL}, plain...)},
		{name: "mapper-modbus", args: append([]string{"--server", coreURL}, plain...)},
	}
	for i := range steps {
		path, err := d.findProgram(cmp.Or(steps[i].program, steps[i].name))
		if err != nil {
			return nil, err
		}
		steps[i].args = append([]string{path}, steps[i].args...)
	}
	return steps, nil
}

// findProgram finds a program of the demo. The demo runs in another directory, so the path is absolute.
func (d *demo) findProgram(name string) (string, error) {
	path, err := program.Find(d.programs, name)
	if err != nil {
		make := "build"
		if name == natsProgram {
			make = ".tools/" + name
		}
		return "", fmt.Errorf("the program %s is neither in %s nor in PATH: build it with `make %s`", name, cmp.Or(d.programs, "edgebus' directory"), make)
	}
	return filepath.Abs(path)
}

// checkPorts returns an error that names the addresses that are taken, and by which process.
func (d *demo) checkPorts() error {
	var wrong []error
	for _, p := range []struct{ flag, address, what string }{
		{"--hub-mqtt", d.hubMQTT, "the hub's MQTT"},
		{"--hub-mqtt-tls", d.hubTLS, "the hub's MQTT over TLS"},
		{"--hub-http", d.hubHTTP, "the hub's HTTP"},
		{"--core-mqtt", d.coreMQTT, "the node's MQTT"},
		{"--core-http", d.coreHTTP, "the node's HTTP"},
		{"--modbus", d.modbus, "the thermostat's Modbus"},
	} {
		listener, err := net.Listen("tcp", p.address)
		if err == nil {
			_ = listener.Close()
			continue
		}
		by := ""
		if owner := whoListens(p.address); owner != "" {
			by = " by " + owner
		}
		wrong = append(wrong, fmt.Errorf("%s can't listen on %s (%w%s): stop what is there, or choose another address with %s", p.what, p.address, err, by, p.flag))
	}
	return errors.Join(wrong...)
}

func (d *demo) start(ctx context.Context, plan []programStep) error {
	for i, s := range plan {
		if err := d.group.start(s.name, s.args, d.dataDir); err != nil {
			return err
		}
		if err := awaitReady(ctx, s.ready); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := d.say(s.name + " runs"); err != nil {
			return err
		}
		if i == 0 {
			if err := errors.Join(d.apply(ctx), d.joinNode(ctx, plan)); err != nil {
				return err
			}
		}
		if s.name == "edgecore" {
			if err := d.makePast(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

const readyTimeout = 20 * time.Second

// awaitReady waits until an address accepts connections or a URL says OK.
func awaitReady(ctx context.Context, target string) error {
	if target == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var last error
	for {
		err := probeReady(ctx, target)
		if err == nil {
			return nil
		}
		if last == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err // rather than that the time is up
		}
		if !backoff.Sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("not ready: %w", last)
		}
	}
}

func probeReady(ctx context.Context, target string) error {
	if !strings.Contains(target, "://") {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", target)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	c, err := hubclient.New(hubclient.Options{Server: u.Scheme + "://" + u.Host, Timeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Get(ctx, u.Path, nil)
}

// joinedConfig is the node's file of settings in the data directory, which edgecore join writes.
const joinedConfig = "core.yaml"

// freeAddress is the address, or one with a free port on the same host if the address is taken.
func freeAddress(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	for _, a := range []string{address, net.JoinHostPort(host, "0")} {
		if l, err := net.Listen("tcp", a); err == nil {
			address = l.Addr().String()
			_ = l.Close()
			return address
		}
	}
	return address
}
