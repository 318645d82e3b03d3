// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// forgetfulDriver devices lose everything when they are opened, as simulated ones do.
type forgetfulDriver struct{ *toyDriver }

func (f forgetfulDriver) Open(ctx context.Context, dev Device) (Session, error) {
	f.toys[dev.Name].set("power", "OFF")
	return f.toyDriver.Open(ctx, dev)
}

// configEdits are new configurations of a device of toyModel(nil).
var configEdits = map[string]struct {
	config map[string]string
	model  *resource.DeviceModel
}{
	"unit of the model": {nil, toyModel(func(m *resource.DeviceModel) { m.Spec.Properties[2].Unit = "K" })},
	"protocol's config": {map[string]string{"colour": "red"}, toyModel(nil)},
	"another model":     {nil, toyModel(func(m *resource.DeviceModel) { m.Metadata.Name, m.Spec.Properties = "toy2", m.Spec.Properties[:2] })},
}

func TestDesiredValueSurvivesANewConfiguration(t *testing.T) {
	for name, edit := range configEdits {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			d := forgetfulDriver{newToys("lamp")}
			n.attach("lamp", "toy", nil, toyModel(nil))
			n.run(d, nil)
			v := n.want("lamp", "power", "ON")
			n.applied("lamp", "power", "ON", v)
			n.attach("lamp", "toy", edit.config, edit.model)
			n.driven(d.toys["lamp"], "power=ON", "power=ON")
			n.applied("lamp", "power", "ON", v)
			n.attach("lamp", "toy", nil, toyModel(nil))
			n.driven(d.toys["lamp"], "power=ON", "power=ON", "power=ON")
			n.applied("lamp", "level", "7", n.want("lamp", "level", "7")) // and no more than once
			require.Equal(t, []string{"power=ON", "power=ON", "power=ON", "level=7"}, d.toys["lamp"].log())
		})
	}
}

func TestNewConfigurationDrivesNothingThatIsThere(t *testing.T) {
	for name, edit := range configEdits {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			d := newToys("lamp")
			n.attach("lamp", "toy", nil, toyModel(nil))
			n.run(d, nil)
			n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
			n.attach("lamp", "toy", edit.config, edit.model)
			n.applied("lamp", "level", "7", n.want("lamp", "level", "7"))
			require.Eventually(t, func() bool { return d.closedOnce("lamp") }, testTimeout, pollInterval)
			n.applied("lamp", "level", "8", n.want("lamp", "level", "8"))
			require.Equal(t, []string{"power=ON", "level=7", "level=8"}, d.toys["lamp"].log())
		})
	}
}

// TestNewConfigurationReappliesADeviatingValue: what is reported is not what is wanted; an edit is the time to mend that.
func TestNewConfigurationReappliesADeviatingValue(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	v := n.want("lamp", "power", "ON")
	n.applied("lamp", "power", "ON", v)
	d.toys["lamp"].set("power", "OFF")
	n.applied("lamp", "power", "OFF", v)
	n.attach("lamp", "toy", map[string]string{"colour": "red"}, toyModel(nil))
	n.applied("lamp", "power", "ON", v)
	require.Equal(t, []string{"power=ON", "power=ON"}, d.toys["lamp"].log())
}

// TestPropertyThatComesBack: a model without it, and then one with it again.
func TestPropertyThatComesBack(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.applied("lamp", "level", "7", n.want("lamp", "level", "7"))
	v := n.want("lamp", "power", "ON")
	n.applied("lamp", "power", "ON", v)
	n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) { m.Spec.Properties = m.Spec.Properties[1:] }))
	require.Eventually(t, func() bool { return d.closedOnce("lamp") }, testTimeout, pollInterval)
	d.toys["lamp"].set("power", "OFF")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.driven(d.toys["lamp"], "level=7", "power=ON", "power=ON")
	n.applied("lamp", "power", "ON", v)
}
