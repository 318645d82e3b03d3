// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// relinquishingToys have a value of their own, 7, below what is written.
type relinquishingToys struct{ *toyDriver }

type relinquishingToy struct{ *toyDevice }

func (d relinquishingToys) Open(ctx context.Context, dev Device) (Session, error) {
	s, err := d.toyDriver.Open(ctx, dev)
	if err != nil {
		return nil, err
	}
	return relinquishingToy{s.(*toyDevice)}, nil
}

func (t relinquishingToy) Relinquish(ctx context.Context, property string) error {
	if err := t.wait(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.values[property] = "7"
	t.writes = append(t.writes, property+" relinquished")
	return nil
}

// noLongerWanted is that a device has its own value, which answers no desired one.
func (n *fakeNode) noLongerWanted(device, property string) {
	n.t.Helper()
	key := "devices/" + device + "/reported/" + property
	require.Eventually(n.t, func() bool {
		value, answers := n.at(key)
		return value == "7" && answers == ""
	}, testTimeout, pollInterval, "the report stayed %s", n.shown(key))
}

func TestADeviceIsToldThatNothingIsDesiredAnyMore(t *testing.T) {
	n := newNode(t)
	d := relinquishingToys{newToys("lamp")}
	toy := d.toys["lamp"]
	n.attach("lamp", "toy", nil, toyModel(nil))
	stop := n.run(d, nil)
	n.applied("lamp", "level", "20", n.want("lamp", "level", "20"))
	n.want("lamp", "level", "")
	n.noLongerWanted("lamp", "level")
	n.applied("lamp", "level", "30", n.want("lamp", "level", "30"))

	stop() // while nobody is there to hear it
	n.want("lamp", "level", "")
	stop = n.run(d, nil)
	n.noLongerWanted("lamp", "level")
	n.driven(toy, "level=20", "level relinquished", "level=30", "level relinquished")

	n.applied("lamp", "level", "40", n.want("lamp", "level", "40"))
	toy.die(errors.New("dead"))
	n.eventually("devices/lamp/state", resource.Offline)
	n.want("lamp", "level", "")
	toy.die(nil)
	n.noLongerWanted("lamp", "level")
	stop()
	n.run(d, nil) // it is not told again
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
	n.driven(toy, "level=20", "level relinquished", "level=30", "level relinquished", "level=40", "level relinquished", "power=ON")
}

func TestWhatWasNeverWrittenIsNotRelinquished(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	spec := resource.Property{Name: "p", Type: resource.TypeInt, AccessMode: resource.ReadWrite}
	p := &property{spec: spec, info: Property{Name: "p", Type: Int, Writable: true}, relinquishes: true}
	require.Equal(t, stepNone, p.plan(now, true, true).step)
	p.desired = desiredValue{ver: 2, cleared: true}
	require.Equal(t, stepForget, p.plan(now, true, true).step)
	p.maybeWritten = true
	require.Equal(t, stepRelinquish, p.plan(now, true, true).step, "an answer was lost")
	p.maybeWritten, p.appliedVer = false, 1
	require.Equal(t, stepRelinquish, p.plan(now, true, true).step)
	p.relinquishes = false
	require.Equal(t, stepForget, p.plan(now, true, true).step, "the driver can't")
	p.relinquishes, p.doneVer = true, 2
	require.Equal(t, stepNone, p.plan(now, true, true).step)
}
