package mappers

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// A command that the Device's spec has sets properties, of whatever driver; a wrong one sets none.
func TestMethodsOfAModelAreCommands(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.commands = []resource.DeviceCommand{{Name: "switch", Properties: []string{"power"}}, {Name: "scene", Properties: []string{"level", "power"}}}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	x := n.commander()
	code, text := x.ask("switch", "ON", 0)
	require.Equal(t, topics.CodeOK, code, text)
	n.eventually("devices/lamp/reported/power", "ON")
	code, text = x.ask("scene", `{"power":"OFF","level":40}`, 0)
	require.Equal(t, topics.CodeOK, code, text)
	n.eventually("devices/lamp/reported/power", "OFF")
	n.eventually("devices/lamp/reported/level", "40")
	for payload, why := range map[string]string{
		`{"level":101,"power":"ON"}`: "maximum", `{"temp":"1"}`: "scene sets level, power", "ON": "JSON object", `{"power":null}`: "scene sets",
	} {
		code, text = x.ask("scene", payload, 0)
		require.Equal(t, topics.CodeRefused, code, payload)
		require.Contains(t, text, why)
	}
	code, text = x.ask("switch", "green", 0)
	require.Equal(t, topics.CodeRefused, code)
	require.Contains(t, text, "ON, OFF")
	code, _ = x.ask("beep", "twice", 0)
	require.Equal(t, topics.CodeOK, code, "the driver's own")
}
