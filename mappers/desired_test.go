// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestACoreWhoseStoreBeginsAnewIsObeyed: whatever number its first version has, it isn't the one that was applied before.
func TestACoreWhoseStoreBeginsAnewIsObeyed(t *testing.T) {
	const epoch = 1 << 32
	for name, c := range map[string]struct {
		before, after uint64 // what the stores count from
		running       bool   // the mapper runs meanwhile
	}{
		"a lower epoch":                     {5 * epoch, 3 * epoch, true},
		"a higher epoch":                    {3 * epoch, 5 * epoch, true},
		"the same number":                   {0, 0, true},
		"a lower epoch, while away":         {5 * epoch, 3 * epoch, false},
		"a restored store, with an epoch":   {0, epoch, true},
		"the same number, which was undone": {7, 7, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			d := newToys("lamp")
			n.attach("lamp", "toy", nil, toyModel(nil))
			stop := n.run(d, nil)
			n.count(c.before)
			n.applied("lamp", "level", "20", n.want("lamp", "level", "20"))
			if !c.running {
				stop()
			}
			n.stop()
			n.count(c.after)
			n.mu.Lock()
			delete(n.kept, "v1/nodes/n1/devices/lamp/reported/level")
			n.mu.Unlock()
			v := n.want("lamp", "level", "50")
			n.start()
			if !c.running {
				n.run(d, nil)
			}
			n.applied("lamp", "level", "50", v)
			n.applied("lamp", "level", "51", n.want("lamp", "level", "51"))
			require.Equal(t, []string{"level=20", "level=50", "level=51"}, d.toys["lamp"].log())
		})
	}
}

// TestALateCopyOfAnOlderVersionIsIgnored: of the same epoch, and not retained.
func TestALateCopyOfAnOlderVersionIsIgnored(t *testing.T) {
	p := &property{}
	require.True(t, p.setDesired(desiredValue{value: "2", ver: 9<<32 + 2}, true))
	require.False(t, p.setDesired(desiredValue{value: "1", ver: 9<<32 + 1}, false))
	require.False(t, p.setDesired(desiredValue{value: "2", ver: 9<<32 + 2}, true))
	require.True(t, p.setDesired(desiredValue{value: "1", ver: 8<<32 + 1}, false), "another store's")
}
