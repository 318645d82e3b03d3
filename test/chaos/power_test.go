package chaos

import (
	"errors"
	"slices"
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
	begin(t, s, seed, disks).rounds(t, seed, (*chaos).planPower)
}

const diskSize = 256 // megabytes

// planPower draws a round's events: a power cut, and at times a network that fails
// or a device that is replaced beside it.
func (c *chaos) planPower() plan {
	ms := func(n int) time.Duration { return time.Duration(c.chance.IntN(n)) * time.Millisecond }
	whom := c.shuffled([]string{"hub", "core"})[:1+c.chance.IntN(2)]
	p := plan{{after: 30*time.Millisecond + ms(500), lasts: ms(200), what: "power", whom: whom}}
	switch c.chance.IntN(4) {
	case 0:
		p = append(p, event{after: ms(400), lasts: ms(600), what: "cut", cut: []string{"reset", "blackhole", "up", "down", "halfopen"}[c.chance.IntN(5)]})
	case 1:
		p = append(p, event{after: ms(500), lasts: ms(50), what: "replace", whom: []string{" guest"}})
	}
	return p
}

// powerCut stops a program at whatever it does, takes its disk away, kills it, and
// brings the disk back. It is stopped first, because the kernel may answer a sync that
// the shutdown overtakes with success; with the power gone nobody hears that answer.
func (c *chaos) powerCut(t *testing.T, name string) error {
	d := c.disks[name]
	if err := c.Freeze(t.Context(), name); err != nil {
		return err
	}
	return errors.Join(d.Cut(), c.Crash(name), d.Restore())
}

// TestPowerLossIsSeen shows that TestPower can fail: without syncs, which the kernel
// is told to skip, the same load must lose what was acknowledged.
func TestPowerLossIsSeen(t *testing.T) {
	for _, name := range sides {
		t.Run(name, func(t *testing.T) {
			d := disk.New(t, diskSize)
			s := stand.New(t, 1)
			c := begin(t, s, 1, map[string]*disk.Disk{name: d})
			require.NoError(t, c.Term(name))
			c.Wrap(name, noSync(t)...)
			require.NoError(t, c.Start(t.Context(), name))
			require.NoError(t, c.rest(t), "with nothing cut")
			err := c.load.run(0, func() error {
				time.Sleep(200 * time.Millisecond) // a load, for as long as rounds have it
				require.NoError(t, c.powerCut(t, name))
				c.Wrap(name)
				return c.Start(t.Context(), name)
			})
			require.NoError(t, c.Doom(name)) // it may refuse to start
			if err != nil {
				t.Logf("as it must: %v", err)
				return
			}
			_ = harness.Eventually(t.Context(), 5*time.Second, c.atRest) // as far as it comes
			values, messages := c.always(), c.load.posts[slices.Index(sides, name)].check(t.Context(), 5*time.Second)
			require.Error(t, values, "values that never were synced survived a power cut: the test sees nothing")
			require.Error(t, messages, "messages that never were synced survived a power cut: the test sees nothing")
			t.Logf("as it must:\n%v\n%v", values, messages)
		})
	}
}
