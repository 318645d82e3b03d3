// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// bellDriver is a driver of devices that tell each command as an event, with its input.
type bellDriver struct{}

type bellSession struct {
	device Device
	rings  chan string
}

func (bellDriver) Protocols() []string { return []string{"bell"} }

func (bellDriver) Open(_ context.Context, d Device) (Session, error) {
	return &bellSession{d, make(chan string, 100)}, nil
}

func (s *bellSession) Close() error { return nil }

func (s *bellSession) Command(_ context.Context, name string, payload []byte) ([]byte, error) {
	if _, ok := s.device.Command(name); !ok {
		return nil, Refuse(NotReachable, "no visitor for %s", name)
	}
	s.rings <- string(payload)
	return nil, nil
}

func (s *bellSession) Events(ctx context.Context, emit func(event, value string)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case ring := <-s.rings:
			emit("pressed", ring)
		}
	}
}

func TestEachEventIsPublishedInTheModelsWords(t *testing.T) {
	n := newNode(t)
	words := []resource.Word{{Value: "single", Read: []resource.Value{"1"}}, {Value: "double", Read: []resource.Value{"2"}}}
	enum := []resource.Value{"single", "double", "hold"}
	m := &resource.DeviceModel{Spec: resource.DeviceModelSpec{
		Events:   []resource.ModelEvent{{Name: "pressed", Enum: enum}},
		Commands: []resource.ModelCommand{{Name: "press", Input: &resource.CommandInput{Enum: enum}}, {Name: "raw", Input: &resource.CommandInput{}}, {Name: "away"}},
		PropertyVisitors: []resource.ProtocolVisitors{{Protocol: "bell", Visitors: []resource.Visitor{
			{EventName: "pressed", Words: words}, {CommandName: "press", Words: words}, {CommandName: "raw"},
		}}},
	}}
	n.attach("lamp", "bell", nil, m)
	n.run(bellDriver{}, nil)
	n.eventually("devices/lamp/state", "online")
	x := n.commander()
	ask := func(name, payload string, want topics.AnswerCode) {
		t.Helper()
		code, text := x.ask(name, payload, 0)
		require.Equal(t, want, code, text)
	}
	ask("press", "single", topics.CodeOK)
	ask("press", "single", topics.CodeOK)
	ask("press", "hold", topics.CodeRefused) // there is no word for it
	ask("raw", "7", topics.CodeOK)           // the device says something that is none of its words
	ask("raw", "2", topics.CodeOK)
	ask("away", "", topics.CodeRefused)
	require.Eventually(t, func() bool { return len(n.published("devices/lamp/events/pressed")) == 3 }, testTimeout, pollInterval)
	require.Equal(t, []string{"single", "single", "double"}, n.published("devices/lamp/events/pressed"), "equal ones too, and only what the model allows")
}
