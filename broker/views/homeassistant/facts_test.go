// SPDX-License-Identifier: Apache-2.0

package homeassistant

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the schemas of MQTT discovery say in Home Assistant 2024.2.1: the members that an entity may have, those that it must have (!), and the
// topics' grammar. They were read from its mqtt component by running it. Not among them: a sensor's options, which it leaves out and later versions
// require for the class enum, and a device's model_id.
var (
	discoveryTopic = regexp.MustCompile(`^homeassistant/(\w+)/[a-zA-Z0-9_-]+/[a-zA-Z0-9_-]+/config$`)
	commonMembers  = strings.Fields(`availability availability_mode availability_template availability_topic device enabled_by_default encoding
		entity_category icon json_attributes_template json_attributes_topic name object_id origin payload_available
		payload_not_available qos unique_id`)
	members = map[string]string{
		"binary_sensor": `state_topic! device_class expire_after force_update off_delay payload_off payload_on value_template`,
		"button":        `command_topic! command_template device_class payload_press retain`,
		"cover": `command_topic device_class optimistic payload_close payload_open payload_stop position_closed position_open position_template
			position_topic retain set_position_template set_position_topic state_closed state_closing state_open state_opening state_stopped state_topic
			value_template`,
		"event": `state_topic! event_types! device_class value_template`,
		"light": `command_topic! brightness_command_template brightness_command_topic brightness_scale brightness_state_topic brightness_value_template
			on_command_type optimistic payload_off payload_on retain schema state_topic state_value_template`,
		"number": `command_topic! command_template device_class max min mode optimistic payload_reset retain state_topic step unit_of_measurement
			value_template`,
		"select": `command_topic! options! command_template optimistic retain state_topic value_template`,
		"sensor": `state_topic! device_class expire_after force_update last_reset_value_template options state_class suggested_display_precision
			unit_of_measurement value_template`,
		"switch": `command_topic! device_class optimistic payload_off payload_on retain state_off state_on state_topic value_template`,
		"text":   `command_topic! command_template max min mode optimistic pattern retain state_topic value_template`,
	}
	deviceMembers = strings.Fields(`configuration_url connections hw_version identifiers manufacturer model model_id name serial_number
		suggested_area sw_version via_device`)
	// Units that the classes of the Devices that are tried here have in that version; later ones have more.
	classUnits = map[string][]string{
		"temperature": {"°C", "°F", "K"}, "humidity": {"%"}, "battery": {"%"}, "carbon_dioxide": {"ppm"}, "power": {"W", "kW"},
		"energy": {"Wh", "kWh", "MWh", "MJ", "GJ"}, "volume_flow_rate": {"m³/h", "L/min", "ft³/min", "gal/min"}, "enum": {""},
	}
	// State classes of classes that don't have all of them.
	classStates = map[string][]string{
		"energy": {"total", "total_increasing"}, "enum": nil, "temperature": {"measurement"}, "power": {"measurement"}, "battery": {"measurement"},
		"humidity": {"measurement"}, "carbon_dioxide": {"measurement"}, "volume_flow_rate": {"measurement"},
	}
)

// discoveryMessages are those in the golden files.
func discoveryMessages(t *testing.T) (list [][2]string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "publish retained homeassistant/"); ok {
				topic, payload, _ := strings.Cut(rest, " ")
				list = append(list, [2]string{"homeassistant/" + topic, payload})
			}
		}
	}
	return list
}

func TestDiscoveryMessagesAreAsHomeAssistantsSchemasWantThem(t *testing.T) {
	components, topicOf := map[string]bool{}, map[string]string{}
	for _, m := range discoveryMessages(t) {
		topic := m[0]
		match := discoveryTopic.FindStringSubmatch(topic)
		require.NotNil(t, match, topic)
		component := match[1]
		components[component] = true
		var config map[string]any
		require.NoError(t, json.Unmarshal([]byte(m[1]), &config), topic)
		checkMembers(t, topic, component, config)
		checkNumbers(t, topic, component, config)

		id := config["unique_id"].(string) + " " + component
		if other := topicOf[id]; other != "" {
			require.Equal(t, other, topic, "one identifier for two entities")
		}
		topicOf[id] = topic
		for key, value := range config {
			if text, ok := value.(string); ok && strings.HasSuffix(key, "_topic") {
				require.NotContains(t, text, "+", topic)
				require.NotContains(t, text, "#", topic)
			}
		}
		for _, a := range config["availability"].([]any) {
			for key := range a.(map[string]any) {
				require.Contains(t, []string{"topic", "payload_available", "payload_not_available", "value_template"}, key, topic)
			}
		}
		for key := range config["device"].(map[string]any) {
			require.Contains(t, deviceMembers, key, topic)
		}
		require.NotEmpty(t, config["device"].(map[string]any)["identifiers"], topic)
		require.True(t, strings.HasPrefix(config["origin"].(map[string]any)["name"].(string), Origin+" "), topic)
	}
	for component := range members {
		require.True(t, components[component], "no Device has a %s", component)
	}
}

func checkMembers(t *testing.T, topic, component string, config map[string]any) {
	t.Helper()
	require.Contains(t, members, component, topic)
	var allowed []string
	for _, name := range strings.Fields(members[component]) {
		plain, required := strings.CutSuffix(name, "!")
		allowed = append(allowed, plain)
		if required {
			require.NotEmpty(t, config[plain], "%s: %s", topic, plain)
		}
	}
	for key := range config {
		require.True(t, slices.Contains(commonMembers, key) || slices.Contains(allowed, key), "%s has %s", topic, key)
	}
	if config["set_position_topic"] != nil {
		require.NotNil(t, config["position_topic"], topic)
		closed, open := config["position_closed"].(float64), config["position_open"].(float64)
		require.True(t, closed < open && closed == math.Trunc(closed) && open == math.Trunc(open), "%s: %v–%v", topic, closed, open)
	}
	if scale, ok := config["brightness_scale"].(float64); ok {
		require.True(t, scale >= 1 && scale == math.Trunc(scale), "%s: %v", topic, scale)
	}
	for _, key := range []string{"options", "event_types"} {
		if list, ok := config[key].([]any); ok {
			for i, one := range list {
				require.IsType(t, "", one, topic)
				require.NotContains(t, list[:i], one, topic)
			}
		}
	}
}

func checkNumbers(t *testing.T, topic, component string, config map[string]any) {
	t.Helper()
	class, _ := config["device_class"].(string)
	unit, _ := config["unit_of_measurement"].(string)
	state, _ := config["state_class"].(string)
	switch component {
	case "number":
		require.Less(t, config["min"], config["max"], topic)
		require.GreaterOrEqual(t, config["step"], 0.001, topic)
		require.LessOrEqual(t, config["max"], float64(1<<53), topic)
		fallthrough
	case "sensor":
		if class != "" {
			require.Contains(t, classUnits[class], unit, "%s: %s", topic, class)
		}
		if states, limited := classStates[class]; limited && state != "" {
			require.Contains(t, states, state, "%s: %s", topic, class)
		}
		if config["options"] != nil {
			require.Equal(t, "enum", class, topic)
			require.Empty(t, unit+state, topic)
		}
	case "text":
		require.LessOrEqual(t, config["max"], 255.0, topic)
	case "binary_sensor":
		if class != "" {
			require.Contains(t, binaryClasses, class, topic)
		}
	}
}

func TestNamesThatDifferHaveIdentifiersThatDiffer(t *testing.T) {
	grammar := regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	seen := map[string]string{}
	for _, a := range []string{"a", "b"} {
		for _, between := range []string{".", "_", "-", "..", "__", "._", "_.", "-_", "_-", ".-", "-.", "_._", "._.", "...", "___"} {
			for _, z := range []string{"", "c", ".c", "_c"} {
				name := a + between + "x" + z
				id := escapeID(name)
				require.Regexp(t, grammar, id)
				require.Empty(t, seen[id], "%s and %s are both %s", name, seen[id], id)
				seen[id] = name
			}
		}
	}
}

func TestAClassIsGivenOnlyWithAUnitOfIt(t *testing.T) {
	for class, c := range parseClasses() {
		require.NotEmpty(t, c.units, class)
		require.Regexp(t, `^(-|m?t?i?)$`, c.states, class)
		for _, unit := range c.units {
			require.Empty(t, unitNames[unit], "%s: %s is written otherwise", class, unit)
		}
	}
}
