// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/cluster"
	"github.com/edgebus/edgebus/topics/resource"
)

// planUpgrade looks whether all hubs know the version of records to which the log is brought. own is what the hub that serves tells of itself.
func planUpgrade(from uint32, own cluster.Hub, heard []cluster.HeardHub, force bool, now time.Time) (p resource.ClusterUpgrade, err error) {
	hubs := append(slices.DeleteFunc(heard, func(h cluster.HeardHub) bool { return h.Name == own.Name }), cluster.HeardHub{Hub: own, When: now})
	p = resource.ClusterUpgrade{From: from, To: own.Records}
	away := func(h cluster.HeardHub) bool { return now.Sub(h.When) > awayAfter }
	for _, h := range hubs {
		if !away(h) {
			p.To = max(p.To, h.Records)
		}
	}
	var old []string
	for _, h := range hubs {
		about := fmt.Sprintf("%s (%s) knows records up to version %d", h.Name, h.Version, h.Records)
		switch {
		case h.Records >= p.To:
		case !away(h):
			old = append(old, about+": upgrade it")
		case force:
			p.Without = append(p.Without, h.Name)
		default:
			old = append(old, fmt.Sprintf("%s, and was last heard %s ago: upgrade it and start it; if it is gone for good, go on without it with --force", about, now.Sub(h.When).Round(time.Second)))
		}
	}
	if old != nil {
		return p, resource.Errorf(resource.Conflict, "", "the log can't be of version %d of records yet: %s. Nothing was changed", p.To, strings.Join(old, "; "))
	}
	return p, nil
}

// FinishUpgrade answers edgebus cluster finish-upgrade: the log is of the version of records that the programs of all hubs know; nil: there is one hub, which
// needs none.
func (s *SharedLog) FinishUpgrade() func(http.ResponseWriter, *http.Request) error {
	if s == nil {
		return nil
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		now, query := time.Now(), r.URL.Query()
		p, err := planUpgrade(s.member.Records(), s.self(), s.teller.hubs.List(now), query.Has("force"), now)
		if err != nil {
			return err
		}
		if !query.Has("dryRun") && p.To > p.From {
			if err := s.member.SetRecords(p.To); err != nil {
				return resource.Errorf(resource.Unavailable, "", "it isn't known whether the log is of version %d of records now: %v", p.To, err)
			}
			s.log.Info().Uint32("version", p.To).Strs("without", p.Without).Msg("the upgrade is finished: the log is of another version of records, and a program that doesn't know it can't be a hub any more")
			p.Done = true
		}
		w.Header().Set("Content-Type", "application/json")
		return json.NewEncoder(w).Encode(p)
	}
}
