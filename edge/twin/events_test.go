// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// bellModel is a model with an event and a command.
var bellModel = resource.DeviceModel{Metadata: resource.Meta{Name: "bell"}, Spec: resource.DeviceModelSpec{
	Events:   []resource.ModelEvent{{Name: "press", Enum: []resource.Value{"single", "double"}}},
	Commands: []resource.ModelCommand{{Name: "ring", Input: &resource.CommandInput{Type: resource.TypeInt, Maximum: float64Pointer(3)}}},
}}

func TestAnEventSaysWhatItsModelAllows(t *testing.T) {
	r := newRig(t)
	kept := make(chan func(error), 8)
	r.kept.Store(&kept)
	go func() {
		for done := range kept {
			done(nil)
		}
	}()
	r.add("bell", "u1", bellModel)
	r.connect()
	r.shows("devices/bell", func(m broker.Message) bool { return len(m.Payload) > 0 })
	require.NoError(t, r.send("devices/bell/events/press", "single"))
	require.NoError(t, r.send("devices/bell/events/press", "single"), "each is an event of its own")
	require.Equal(t, []string{"single", "single"}, r.said("devices/bell/events/press"))
	require.ErrorContains(t, r.send("devices/bell/events/press", "triple"), `press: "triple" is not one of single, double`)
	require.ErrorContains(t, r.send("devices/bell/events/press", ""), "says nothing")
	require.NoError(t, r.send("devices/bell/events/other", "anything"), "it is none of the model's")
	require.NotContains(t, r.retained(), "devices/bell/events/press")
}

func TestACommandsInputIsCheckedOnTheNode(t *testing.T) {
	r := newRig(t)
	r.add("bell", "u1", bellModel)
	r.connect()
	r.shows("devices/bell", func(m broker.Message) bool { return len(m.Payload) > 0 })
	require.NoError(t, r.twin.CheckCommand("n1", "bell", "ring", []byte("3")))
	require.NoError(t, r.twin.CheckCommand("n1", "bell", "of-the-mapper", []byte("x")))
	require.ErrorContains(t, r.twin.CheckCommand("n1", "bell", "ring", []byte("4")), "above the maximum of 3")
	require.ErrorIs(t, r.twin.CheckCommand("n1", "lamp", "ring", nil), resource.NotFound)
	r.restart()
	require.ErrorContains(t, r.twin.CheckCommand("n1", "bell", "ring", nil), "needs an input")
}
