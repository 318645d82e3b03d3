// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	hubclient "github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// apply creates the sample resources; in a kept directory they may exist.
func (d *demo) apply(ctx context.Context) error {
	samples, err := configs.Samples()
	if err != nil {
		return err
	}
	c, err := hubclient.New(hubclient.Options{Server: "http://" + d.hubHTTP})
	if err != nil {
		return err
	}
	defer c.Close()
	for _, s := range samples {
		if d.modbus == "" && strings.Contains(s.Name, "thermostat") {
			continue // nothing simulates one
		}
		k, err := c.Kind(ctx, s.Kind)
		if err == nil {
			text := bytes.ReplaceAll(s.JSON, []byte("127.0.0.1:1502"), []byte(d.modbus))
			_, err = c.Create(ctx, k, resource.DefaultNamespace, text, hubclient.WriteOptions{})
		}
		if err != nil && !errors.Is(err, resource.AlreadyExists) {
			return fmt.Errorf("creating %s %s: %w", s.Kind, s.Name, err)
		}
	}
	return nil
}

// joinNode invites the node and has it join, as two people on two machines would. In a kept directory it may have joined.
func (d *demo) joinNode(ctx context.Context, plan []programStep) error {
	joined, err := d.hasJoined()
	if err != nil {
		return err
	}
	if joined {
		return d.say("node " + demoNode + " has joined before: its certificate is in " + filepath.Join(d.dataDir, "core"))
	}
	c, err := hubclient.New(hubclient.Options{Server: "http://" + d.hubHTTP})
	if err != nil {
		return err
	}
	defer c.Close()
	request := hubclient.InvitationRequest{Node: demoNode}
	invitation, err := c.Invite(ctx, request)
	if err != nil {
		return fmt.Errorf("inviting the node: %w", err)
	}
	line := request.JoinCommand(invitation)
	if err := d.say("$ edgebus invite " + demoNode + "\n" + line); err != nil {
		return err
	}
	core := slices.IndexFunc(plan, func(s programStep) bool { return s.name == "edgecore" })
	args := append(strings.Fields(line)[1:], "--config", joinedConfig, "--data-dir", "core", "--no-start")
	cmd := exec.CommandContext(ctx, plan[core].args[0], args...) //nolint:gosec // G204: a program of the demo
	cmd.Dir, cmd.Env = d.dataDir, cleanEnvironment()
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, text)
	}
	d.join = line
	text, _, _ = strings.Cut(text, "\n") // the rest says how to start the core
	return d.say("$ " + line + "\n" + text)
}

// hasJoined is whether the settings in the data directory name an identity that is there. They name none if the
// directory was moved, or is of a demo without TLS: then the node joins again.
func (d *demo) hasJoined() (bool, error) {
	text, err := os.ReadFile(filepath.Join(d.dataDir, joinedConfig))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	pairs, err := filepath.Glob(filepath.Join(d.dataDir, "core", "identity", "*", "node.pem"))
	return slices.ContainsFunc(pairs, func(pair string) bool { return bytes.Contains(text, []byte(pair)) }), err
}

// joinedText says how the node has joined the hub.
func (d *demo) joinedText() string {
	if d.join == "" {
		return "joined before; the link is MQTT over TLS, with the node's certificate"
	}
	line, _, _ := strings.Cut(d.join, " --token ") // the token has been used
	return "joined over TLS: edgebus invite " + demoNode + ", " + line + " --token …"
}
