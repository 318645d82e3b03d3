// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/disk"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

// TestPower is TestChaos with real power cuts: hub and core keep their data on file
// systems of their own, which are shut down under load. What was not synced is lost, as
// it would be with the machine's power.
func TestPower(t *testing.T) {
	disks := map[string]*disk.Disk{"hub": disk.New(t, diskSize), "core": disk.New(t, diskSize)}
	s, seed := newStand(t)
	startChaos(t, s, seed, disks).rounds(t, seed, *roundsFlag, (*chaosRun).planPower)
}

const diskSize = 256 // megabytes

// planPower draws a round's events: a power cut, and at times a network that fails
// or a device that is replaced beside it.
func (c *chaosRun) planPower() faultPlan {
	ms := func(n int) time.Duration { return time.Duration(c.chance.IntN(n)) * time.Millisecond }
	whom := c.shuffled([]string{"hub", "core"})[:1+c.chance.IntN(2)]
	p := faultPlan{{after: 30*time.Millisecond + ms(500), lasts: ms(200), what: "power", whom: whom}}
	switch c.chance.IntN(4) {
	case 0:
		p = append(p, faultEvent{after: ms(400), lasts: ms(600), what: "cut", cut: []string{"reset", "blackhole", "up", "down", "halfopen"}[c.chance.IntN(5)]})
	case 1:
		p = append(p, faultEvent{after: ms(500), lasts: ms(50), what: "replace", whom: []string{" guest"}})
	}
	return p
}

// powerCut stops a program at whatever it does, takes its disk away, kills it, and
// brings the disk back. It is stopped first, because the kernel may answer a sync that
// the shutdown overtakes with success; with the power gone nobody hears that answer.
func (c *chaosRun) powerCut(t *testing.T, name string) error {
	d := c.disks[name]
	if err := c.Freeze(t.Context(), name); err != nil {
		return err
	}
	return errors.Join(d.Cut(), c.Crash(name), d.Restore())
}

// TestPowerLossIsSeen shows that TestPower can fail: without syncs, which the kernel
// is told to skip, what the same load was told is stored is gone, and seen to be.
func TestPowerLossIsSeen(t *testing.T) {
	for i, name := range brokerSides {
		t.Run(name, func(t *testing.T) {
			d := disk.New(t, diskSize)
			s := stand.New(t, 1)
			c := startChaos(t, s, 1, map[string]*disk.Disk{name: d})
			require.NoError(t, c.Term(name))
			c.Wrap(name, noSync(t)...)
			require.NoError(t, c.Start(t.Context(), name))
			require.NoError(t, c.rest(t), "with nothing cut")
			require.NoError(t, c.load.run(200*time.Millisecond, nil)) // nobody writes over what is lost then
			require.NoError(t, c.powerCut(t, name))
			c.Wrap(name)
			require.NoError(t, c.Start(t.Context(), name))
			c.loses(t, name+"'s values", []*stand.Watcher{c.cloud.Watcher, c.node.Watcher}[i], []string{"/desired/a", "/reported"}[i])
			c.loses(t, name+"'s retained messages", c.load.boards["board/"+name], "board/"+name)
			c.losesMessages(t, c.load.posts[i])
		})
	}
}

// loses waits until a broker shows an older value of some topic than the last one that
// it acknowledged. A topic that isn't shown may only not have come yet, and proves nothing.
func (c *chaosRun) loses(t *testing.T, what string, shown *stand.Watcher, topics string) {
	t.Helper()
	require.NoError(t, harness.Eventually(t.Context(), settleTime, func(context.Context) error {
		for _, w := range c.load.writers {
			topic := w.topic
			if w.members != nil {
				topic += "/" + w.members[0]
			}
			m, _ := shown.Get(topic)
			if err := w.may(string(m.Payload)); err != nil && len(m.Payload) > 0 && strings.Contains(topic, topics) {
				t.Logf("as it must: %v", err)
				return nil
			}
		}
		return errors.New("no acknowledged value is lost, though none was synced: the test sees nothing")
	}), what)
}

// losesMessages looks for messages that were acknowledged and that nobody is given any more.
func (c *chaosRun) losesMessages(t *testing.T, p *mailPost) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	require.NoError(t, p.collect(ctx))
	for _, s := range p.senders {
		if err := s.missing(p.offline); err != nil {
			t.Logf("as it must: %v", err)
			return
		}
	}
	t.Errorf("no message on %s is lost, though none was synced: the test sees nothing", p.topic)
}
