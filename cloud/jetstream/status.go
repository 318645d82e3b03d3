// SPDX-License-Identifier: Apache-2.0

package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// Status asks the servers how the log is. It doesn't fail: that they don't answer is an answer.
func (l *Log) Status(ctx context.Context) resource.ClusterEngine {
	e := resource.ClusterEngine{Kind: "nats", Name: l.o.Stream, Replicas: l.o.Replicas}
	began := time.Now()
	i, err := l.info(ctx)
	e.Answer = time.Since(began).Seconds()
	if err != nil {
		e.Error = err.Error()
		if errors.Is(err, context.DeadlineExceeded) {
			e.Error = fmt.Sprintf("nothing came for %.1f s", e.Answer)
		}
		return e
	}
	e.Floor, e.End, e.Bytes = uint64(i.floor()), i.State.Last, i.State.Bytes
	e.Wrong = strings.Join(i.Config.wrong(l.o), "; ")
	e.Leader = i.Cluster.Leader
	current := 0
	if e.Leader != "" {
		e.Servers, current = append(e.Servers, resource.ClusterServer{Name: e.Leader, Leader: true, Current: true}), 1
	}
	for _, p := range i.Cluster.Replicas {
		// The servers call it offline after a minute and more. A leader that has never heard it has no time.
		gone := p.Offline || !p.Current && (p.Active > goneAfter || p.Active == 0)
		s := resource.ClusterServer{Name: p.Name, Current: p.Current && !gone, Offline: gone, Lag: p.Lag}
		if s.Current {
			current++
		}
		e.Servers = append(e.Servers, s)
	}
	slices.SortFunc(e.Servers, func(a, b resource.ClusterServer) int { return strings.Compare(a.Name, b.Name) })
	e.Quorum = e.Leader != "" && current > i.Config.Replicas/2 || i.Config.Replicas == 1
	return e
}

const goneAfter = 5 * time.Second // of silence of a server that has not all there is

// clusterInfo is which servers have a stream.
type clusterInfo struct {
	Leader   string `json:"leader"`
	Replicas []struct {
		Name    string        `json:"name"`
		Current bool          `json:"current"`
		Offline bool          `json:"offline"`
		Active  time.Duration `json:"active"` // since it was heard
		Lag     uint64        `json:"lag"`
	} `json:"replicas"`
}
