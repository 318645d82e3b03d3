// SPDX-License-Identifier: Apache-2.0

package link

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each rule is left out in turn. A simulation that then finds nothing would
// find nothing either if the machines broke that rule.
func TestChecksNoticeEachMissingRule(t *testing.T) {
	quiet := simWorld{}
	forked := simWorld{restoreOwner: true, restoreReplica: true}
	silent := simWorld{restoreOwner: true, restoreReplica: true, silent: true}
	for name, c := range map[string]struct {
		simWorld
		simRules
		noStamp bool
		seeds   uint64
		want    string
	}{
		// The digest would mend what these two break, so it is off as well.
		"base of a DELTA": {simWorld: quiet, simRules: simRules{noBase: true, noDigest: true}, seeds: 4000, want: "I2 different at rest"},
		"floor of dropped tombstones": {
			simWorld: forked, simRules: simRules{noFloor: true, noDigest: true}, seeds: 12000, want: "I2 different at rest",
		},
		"digest":                {simWorld: silent, simRules: simRules{noDigest: true}, seeds: 4000, want: "I2 different at rest"},
		"new lineage":           {simWorld: silent, simRules: simRules{noLineage: true}, seeds: 4000, want: "L no rest"},
		"FULL replaces":         {simWorld: forked, simRules: simRules{noReplace: true}, seeds: 4000, want: "I2 different at rest"},
		"connection of a SEEN":  {simWorld: silent, simRules: simRules{noNonce: true}, seeds: 4000, want: "I5 in step, and different"},
		"guard of effects":      {simWorld: quiet, simRules: simRules{noGuard: true}, seeds: 4000, want: "I4 effect twice"},
		"stamp of the restorer": {simWorld: simWorld{restoreOwner: true}, noStamp: true, seeds: 4000, want: "I4 effect of an older version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := c.simWorld
			w.simRules, w.noStamp = c.simRules, c.noStamp
			for seed := uint64(0); seed < c.seeds; seed++ {
				if newSimulation(w, seed).run(150).bad[c.want] {
					t.Log("noticed at seed", seed)
					return
				}
			}
			t.Fatal("not noticed: ", c.want)
		})
	}
}

// An ADOPT that comes late must not name a map that has changed since. That
// takes a rollback between the two, too rare to wait for it in simulations.
func TestLateAdoptIsRefused(t *testing.T) {
	for _, ablated := range []bool{false, true} {
		p := newPair(t)
		p.put("a", "1")
		p.connect().run()
		older := newDisk()
		for _, j := range p.repLog {
			older.commit(j)
		}
		p.put("a", "2")
		p.run()
		p.projectAnew()
		p.r.Step(p.wire(p.o.Messages()[0]))
		require.NoError(t, p.o.Step(p.wire(p.r.Messages()[0])))
		adopt := p.o.Messages()[0]
		require.Equal(t, TypeAdopt, adopt.Type)

		r, err := RestoreReplica(Up, older.state, maps.Values(older.entries))
		require.NoError(t, err)
		if ablated {
			d := r.Digest()
			adopt.Digest = &d
		}
		require.Empty(t, r.Step(adopt))
		require.Equal(t, ablated, r.Lineage() == p.o.Lineage(), "a replica that doesn't compare takes it")
		p.r = r
		p.connect().run()
		p.requireInStep()
	}
}

// noFullDigest lets any whole FULL pass, as if it had no digest.
func (r *Replica) noFullDigest(m *Message) {
	if m.Part == m.Parts-1 {
		var s hashSum
		if r.partial != nil && r.partial.id == m.ID && m.Part > 0 {
			s = r.partial.sum
		}
		for i := range m.Entries {
			s.add(m.Entries[i].hash())
		}
		d := s.digest()
		m.Digest = &d
	}
}

// merge makes a FULL keep what it should remove.
func (r *Replica) merge(m *Message) {
	if m.Part != m.Parts-1 {
		return
	}
	has := map[string]bool{}
	if r.partial != nil && r.partial.id == m.ID && m.Part > 0 {
		for _, k := range r.partial.Keys("") {
			has[k] = true
		}
	}
	m.Entries = slices.Clone(m.Entries)
	for _, e := range m.Entries {
		has[e.Key] = true
	}
	if m.Parts == 1 || r.partial != nil && r.partial.held == m.Part {
		for _, k := range r.Keys("") {
			if !has[k] {
				m.Upto++ // room for a seq of its own
				e, _ := r.Get(k)
				e.Seq = m.Upto
				m.Entries = append(m.Entries, e)
			}
		}
	}
	r.noFullDigest(m)
}
