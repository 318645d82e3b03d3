// SPDX-License-Identifier: Apache-2.0

package stand

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/test/harness"
)

// Metrics are a program's figures without labels, by name.
func (s *Stand) Metrics(httpAddress string) (map[string]float64, error) {
	text, err := harness.Call(context.Background(), http.MethodGet, "http://"+httpAddress+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			all[name] = v
		}
	}
	return all, nil
}

// InStep waits until n1 and the hub agree that both have everything.
func (s *Stand) InStep() {
	s.t.Helper()
	s.Eventually(WaitTimeout, s.CheckInStep)
}

// CheckInStep says what n1 or the hub still wait for.
func (s *Stand) CheckInStep() error {
	hub, err := s.Metrics(s.Hub.HTTP)
	if err != nil {
		return err
	}
	core, err := s.Metrics(s.Node("n1").HTTP)
	if err != nil {
		return err
	}
	for _, want := range []struct {
		from  map[string]float64
		name  string
		value float64
	}{
		{core, "edgebus_core_link_up", 1},
		{core, "edgebus_core_link_in_step", 1},
		{core, "edgebus_core_link_behind_keys", 0},
		{hub, "edgebus_hub_nodes_online", 1},
		{hub, "edgebus_hub_nodes_in_step", 1},
		{hub, "edgebus_hub_behind_keys", 0},
		{hub, "edgebus_hub_desired_waiting", 0},
		{hub, "edgebus_hub_up_keys", core["edgebus_core_up_keys"]},
		{hub, "edgebus_hub_down_keys", core["edgebus_core_down_keys"]},
	} {
		if got, ok := want.from[want.name]; !ok || got != want.value {
			return fmt.Errorf("%s is %v, not %v", want.name, got, want.value)
		}
	}
	return nil
}

// Whole waits until both sides are in step and two watchers of v1/# or v1/nodes/n1/#,
// one on each broker, have been told everything.
func (s *Stand) Whole(cloud, local *Watcher) {
	s.t.Helper()
	s.Eventually(WaitTimeout, func() error { return s.CheckWhole(cloud, local) })
}

// CheckWhole says what the watchers have not been told yet.
func (s *Stand) CheckWhole(cloud, local *Watcher) error {
	if err := s.CheckInStep(); err != nil {
		return err
	}
	core, err := s.Metrics(s.Node("n1").HTTP)
	if err != nil {
		return err
	}
	if !cloud.Up() || !local.Up() {
		return errors.New("a watcher is not connected")
	}
	hub, node := cloud.Tree(), local.Tree()
	keys := int(core["edgebus_core_up_keys"] + core["edgebus_core_down_keys"])
	if len(hub) != keys+1 { // and the state
		return fmt.Errorf("the hub shows %d keys, there are %d", len(hub), keys+1)
	}
	for topic := range hub {
		desired := strings.Replace(topic, "/override/", "/desired/", 1)
		if _, wanted := hub[desired]; !wanted { // in force without a wish of the cloud's
			keys++
		}
	}
	if len(node) != keys {
		return fmt.Errorf("the core shows %d keys, there are %d", len(node), keys)
	}
	return nil
}
