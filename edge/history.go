// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net/http"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/history/requests"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/history"
	"github.com/edgebus/edgebus/edge/twin"
	"github.com/edgebus/edgebus/topics/resource"
)

// nodeHistory is the node's history, or that there is none.
type nodeHistory struct{ kept *history.Recorder }

// openHistory opens the history, unless limits.history.bytes is 0.
func openHistory(cfg configs.Core, log zerolog.Logger) (n nodeHistory, err error) {
	if cfg.Limits.History.Bytes > 0 {
		n.kept, err = history.Open(history.Options{Dir: cfg.Data.Dir, Bytes: int64(cfg.Limits.History.Bytes), Log: log})
	}
	return n, err
}

func (n nodeHistory) recorder() twin.HistoryRecorder {
	if n.kept == nil {
		return nil
	}
	return n.kept
}

// follow says whose history it is, and answers requests for it that reach the broker before the tree does.
func (n nodeHistory) follow(devices history.Devices, tree broker.Tree, publish func(broker.Message), log zerolog.Logger) broker.Tree {
	if n.kept != nil {
		n.kept.Follow(devices)
	}
	return requests.New(requests.Options{Find: n.findOn, Tree: tree, Publish: publish, Log: log})
}

func (n nodeHistory) findOn(ctx context.Context, node, device string) (resource.Bundle, requests.Source, error) {
	if n.kept == nil {
		return resource.Bundle{}, nil, resource.Errorf(resource.NotFound, "", "this node keeps no history: limits.history.bytes is 0")
	}
	return n.kept.Find(ctx, node, device)
}

// find answers a request of the local API.
func (n nodeHistory) find(w http.ResponseWriter, r *http.Request, device string) error {
	b, source, err := n.findOn(r.Context(), "", device)
	if err != nil {
		return err
	}
	return requests.ServeHTTP(w, r, b, source)
}

// send sends the hub what its copy lacks, after all state of the connection.
func (n nodeHistory) send(ctx context.Context, s *history.CopySender, caughtUp <-chan struct{}) {
	if n.kept == nil {
		return
	}
	select {
	case <-caughtUp:
		n.kept.Send(ctx, s)
	case <-ctx.Done():
	}
}

func (n nodeHistory) register(r metrics.Registry) {
	if n.kept != nil {
		n.kept.Register(r)
	}
}

func (n nodeHistory) setLowSpace(low string) {
	if n.kept != nil {
		n.kept.SetLowSpace(low)
	}
}

func (n nodeHistory) run(ctx context.Context) error {
	if n.kept == nil {
		return nil
	}
	return n.kept.Run(ctx)
}
