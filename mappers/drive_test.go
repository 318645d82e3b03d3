// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/resource"
)

func (t *toyDevice) refusing(r *Refusal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refuse = r
}

// A value that the device could not take for the moment is written when the device is back, and after a while; one that it
// refused for good is not.
func TestAValueRefusedForTheMomentIsTriedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		retry client.Backoff
		after func(*fakeNode, *toyDevice)
	}{
		"back": {client.Backoff{Min: time.Hour, Max: time.Hour}, func(n *fakeNode, toy *toyDevice) {
			toy.die(errors.New("dead"))
			n.eventually("devices/lamp/state", resource.Offline)
			toy.refusing(nil)
			toy.die(nil)
		}},
		"after a while": {client.Backoff{Min: pollInterval, Max: 4 * pollInterval}, func(_ *fakeNode, toy *toyDevice) { toy.refusing(nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			d := newToys("lamp")
			n.attach("lamp", "toy", nil, toyModel(nil))
			d.toys["lamp"].refusing(Refuse(Unavailable, "busy"))
			n.run(d, func(o *Options) { o.Retry = test.retry })
			n.eventually("devices/lamp/state", resource.Online)
			level := n.want("lamp", "level", "5")
			n.refused("lamp", "level", level, Unavailable)
			test.after(n, d.toys["lamp"])
			n.applied("lamp", "level", "5", level)

			// Once it is applied the refusal is not said again, whatever the broker has forgotten.
			said := len(n.published("devices/lamp/refused/level"))
			n.stop()
			n.start()
			n.applied("lamp", "level", "6", n.want("lamp", "level", "6"))
			require.Len(t, n.published("devices/lamp/refused/level"), said)

			d.toys["lamp"].refusing(Refuse(Rejected, "never"))
			n.refused("lamp", "level", n.want("lamp", "level", "7"), Rejected)
			d.toys["lamp"].refusing(nil)
			n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
			n.applied("lamp", "level", "6", 2)
		})
	}
}
