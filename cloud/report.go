// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/mqttserver"
	"github.com/edgebus/edgebus/broker/views/runner"
	"github.com/edgebus/edgebus/cloud/clusterhub"
	"github.com/edgebus/edgebus/cloud/events"
	"github.com/edgebus/edgebus/cloud/twin"
	"github.com/edgebus/edgebus/topics/acl"
	"github.com/edgebus/edgebus/topics/resource"
)

// linkReporter reports the state of the hub's links.
func linkReporter(self resource.HubID, tw *twin.Twins, br *broker.Broker, commits *metrics.Commits, rules *acl.ActiveRules, space *datadir.DiskSpace, shown *runner.Views, late func() map[string]string, version string) func(node string, most int) resource.LinkReport {
	return func(node string, most int) resource.LinkReport {
		r := mqttserver.LinkReport("cloudhub", version, br, commits, rules, space)
		r.Hub, r.FailingViews, r.LateCopies = self.Text(), shown.Failing(), late()
		r.Links, r.More = tw.Links(node, most)
		for i := range r.Links {
			l := &r.Links[i]
			if at, keepAlive, ok := br.Heard("node/" + l.Node); ok && l.State == resource.Online {
				l.KeepAlive = keepAlive.Seconds()
				if !at.IsZero() {
					l.LastSeen = resource.FormatTime(at)
				}
			}
		}
		return r
	}
}

// readyChecks are those of /readyz.
func readyChecks(commits *metrics.Commits, shared *clusterhub.SharedLog) map[string]func(context.Context) error {
	all := map[string]func(context.Context) error{"store": storesReady(commits)}
	if shared != nil {
		all["log"] = shared.Ready
	}
	return all
}

// storesReady fails if one of the hub's stores can't be written.
func storesReady(commits *metrics.Commits) func(context.Context) error {
	return func(context.Context) error {
		if gone := commits.Gone(); gone != "" {
			return errors.New(gone)
		}
		failing := commits.Failing()
		if len(failing) == 0 {
			return nil
		}
		var all []string
		for _, store := range slices.Sorted(maps.Keys(failing)) {
			all = append(all, fmt.Sprintf("%s can't be stored: %s", store, failing[store]))
		}
		return errors.New(strings.Join(all, "; "))
	}
}

// registerHubMetrics registers the hub's metrics, which are read when they are scraped.
func registerHubMetrics(r metrics.Registry, tw *twin.Twins, recorder *events.Recorder) {
	g := metrics.NewGroup("hub", tw.Stats)
	type stats = twin.Stats
	gauge := func(name, help string, f func(stats) int) {
		g.Gauge(name, help, func(s stats) float64 { return float64(f(s)) })
	}
	counter := func(name, help string, f func(stats) uint64) {
		g.Counter(name, help, func(s stats) float64 { return float64(f(s)) })
	}
	gauge("nodes", "Nodes that are known.", func(s stats) int { return s.Nodes })
	gauge("nodes_online", "Nodes that are connected.", func(s stats) int { return s.Online })
	gauge("nodes_in_step", "Nodes that have said, in their present connection, that they have everything.", func(s stats) int { return s.InStep })
	gauge("nodes_late", "Connected nodes that have lacked something for longer than 30 seconds.", func(s stats) int { return s.Late })
	gauge("devices", "Devices.", func(s stats) int { return s.Devices })
	gauge("down_keys", "Keys that the cloud owns.", func(s stats) int { return s.DownKeys })
	gauge("up_keys", "Keys that nodes own.", func(s stats) int { return s.UpKeys })
	gauge("up_bytes", "Bytes of the names and values of those keys.", func(s stats) int { return s.UpBytes })
	gauge("nodes_oversize", "Nodes of which nothing is taken because they own more than limits.node.", func(s stats) int { return s.Oversize })
	gauge("nodes_of_another_hub", "Nodes that keep what another hub gave them, and are left alone.", func(s stats) int { return s.OfAnotherHub })
	gauge("behind_keys", "Keys that connected nodes have not confirmed yet.", func(s stats) int { return s.Behind })
	g.Gauge("behind_seconds", "Age of the oldest key that a connected node has not confirmed yet.", func(s stats) float64 { return s.Oldest.Seconds() })
	gauge("desired_waiting", "Publishes of desired values that wait for their commit.", func(s stats) int { return s.DesiredWrites })
	gauge("steps_waiting", "Messages and events that wait to be handled; at 4096 their senders wait.", func(s stats) int { return s.StepsWaiting })
	gauge("status_waiting", "Devices and nodes whose status waits to be written.", func(s stats) int { return s.StatusWaiting })
	counter("links_total", "Connections of nodes that began.", func(s stats) uint64 { return s.Links })
	counter("link_takeovers_total", "Connections of nodes that ended because the same node connected again.", func(s stats) uint64 { return s.Takeovers })
	counter("commits_total", "Transactions with what nodes reported.", func(s stats) uint64 { return s.Commits })
	counter("commits_failed_total", "Transactions with what nodes reported that could not be stored.", func(s stats) uint64 { return s.FailedCommits })
	counter("steps_total", "Messages and events that were handled.", func(s stats) uint64 { return s.Steps })
	counter("statuses_total", "Statuses of Devices and Nodes that were written.", func(s stats) uint64 { return s.Statuses })
	r.MustRegister(g, newEventMetrics(recorder))
}

func newEventMetrics(recorder *events.Recorder) *metrics.Group[events.Stats] {
	g := metrics.NewGroup("hub_events", recorder.Stats)
	g.Counter("written_total", "Events that were written, or counted once more.", func(s events.Stats) float64 { return float64(s.Written) })
	g.Counter("dropped_total", "Events that were dropped because too many waited to be written.", func(s events.Stats) float64 { return float64(s.Dropped) })
	g.Gauge("waiting", "Events that wait to be written.", func(s events.Stats) float64 { return float64(s.Waiting) })
	return g
}
