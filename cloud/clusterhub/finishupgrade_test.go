// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cluster"
	"github.com/edgebus/edgebus/topics/resource"
)

// A log gets a new version when all hubs that may come back know it.
func TestAnUpgradeIsFinishedWhenAllHubsKnowTheVersion(t *testing.T) {
	now := time.Now()
	hub := func(name string, records uint32, ago time.Duration) cluster.HeardHub {
		return cluster.HeardHub{Hub: cluster.Hub{Name: name, Version: "v1", Records: records}, When: now.Add(-ago)}
	}
	for name, c := range map[string]struct {
		own     uint32
		others  []cluster.HeardHub
		force   bool
		to      uint32
		without []string
		refused string
	}{
		"all":                    {own: 2, others: []cluster.HeardHub{hub("b", 2, 0), hub("c", 2, time.Second)}, to: 2},
		"all, already":           {own: 1, others: []cluster.HeardHub{hub("b", 1, 0)}, to: 1},
		"one is old":             {own: 2, others: []cluster.HeardHub{hub("b", 1, 0), hub("c", 2, 0)}, to: 2, refused: `b \(v1\) knows records up to version 1: upgrade it`},
		"one is old, by force":   {own: 2, others: []cluster.HeardHub{hub("b", 1, 0)}, force: true, to: 2, refused: "b .*upgrade it"},
		"the one that serves is": {own: 1, others: []cluster.HeardHub{hub("b", 2, 0)}, force: true, to: 2, refused: "a .*upgrade it"},
		"one is away":            {own: 2, others: []cluster.HeardHub{hub("b", 1, time.Hour)}, to: 2, refused: "b .*1h0m0s ago.*--force"},
		"one is away, by force":  {own: 2, others: []cluster.HeardHub{hub("b", 1, time.Hour)}, force: true, to: 2, without: []string{"b"}},
		"a new one is away":      {own: 1, others: []cluster.HeardHub{hub("b", 2, time.Hour)}, to: 1},
		"what it told before":    {own: 2, others: []cluster.HeardHub{hub("a", 1, time.Second), hub("b", 2, 0)}, to: 2},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := planUpgrade(1, cluster.Hub{Name: "a", Version: "v1", Records: c.own}, c.others, c.force, now)
			if c.refused != "" {
				require.ErrorIs(t, err, resource.Conflict)
				require.Regexp(t, c.refused, err.Error())
				return
			}
			require.NoError(t, err)
			require.Equal(t, resource.ClusterUpgrade{From: 1, To: c.to, Without: c.without}, p)
		})
	}
}
