package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/stand"
)

// A program whose damaged data was moved away begins anew, and both sides agree on what
// that means: what the other side owns comes back by itself, what it owned itself is gone.
func TestBeginAnew(t *testing.T) {
	s := stand.New(t, 1)
	s.Up("hub", "core")
	things := stand.Model("meter", "{name: level}", "{name: wish, accessMode: ReadWrite}") + stand.Device("meter", "by-hand", "meter")
	s.Create(things)
	s.Eventually(stand.Soon, func() error { return gauge(s, s.Node("n1").HTTP, "edgebus_core_devices", 1) })
	const level, wish = "v1/nodes/n1/devices/meter/reported/level", "v1/nodes/n1/devices/meter/desired/wish"
	cloud, local := s.Watch(s.Hub.MQTT, "v1/nodes/n1/#", nil), s.Watch(s.Core(), "v1/nodes/n1/#", nil)
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)
	shows := func(topic, value string) {
		t.Helper()
		s.InStep()
		cloud.Await(topic, value)
		local.Await(topic, value)
	}
	for _, value := range []string{"1", "2", "3"} {
		require.NoError(t, s.Publish(hub, wish, value))
		require.NoError(t, s.Publish(core, level, value))
	}
	shows(level, "3")
	moveAway := func(program, name string) {
		t.Helper()
		require.NoError(t, s.Term(program))
		path := filepath.Join(s.Dir, program, name)
		require.NoError(t, os.Rename(path, path+".damaged"))
		s.Up(program)
	}

	moveAway("core", "tree")
	shows(wish, "3")
	shows(level, "") // it was the node's
	s.Eventually(stand.Soon, func() error { return s.Publish(core, level, "4") })
	shows(level, "4")

	moveAway("hub", "hub.db")
	shows(level, "") // with its Device, which was the hub's
	s.Create(things)
	s.Eventually(stand.Soon, func() error { return s.Publish(hub, wish, "5") })
	s.Eventually(stand.Soon, func() error { return s.Publish(core, level, "6") })
	shows(wish, "5")
	shows(level, "6")
}
