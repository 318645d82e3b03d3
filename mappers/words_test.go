// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestNumbersOfADeviceAreTheSameHoweverTheyAreWritten(t *testing.T) {
	for _, same := range [][2]string{{"0xFFFF", "65535"}, {"0xffff", "0xFFFF"}, {"nan", "NaN"}, {"1.0", "1"}, {"-1", "-1.0"}, {"", ""}, {"LOCKED", "LOCKED"}} {
		require.True(t, sameText(same[0], same[1]), same)
	}
	for _, differ := range [][2]string{{"0xFFFF", "-1"}, {"locked", "LOCKED"}, {"", "0"}, {"18446744073709551615", "-1"}, {"9007199254740993", "9007199254740992"}} {
		require.False(t, sameText(differ[0], differ[1]), differ)
	}
}

// TestADeviceWithWordsOfItsOwn says OFF and on for what the model calls closed and open.
func TestADeviceWithWordsOfItsOwn(t *testing.T) {
	n := newNode(t)
	d := newToys("door")
	n.attach("door", "toy", nil, toyModel(func(m *resource.DeviceModel) {
		m.Spec.Properties[0].Enum = []resource.Value{"open", "closed"}
		m.Spec.PropertyVisitors[0].Visitors[0].Words = []resource.Word{
			{Value: "open", Read: []resource.Value{"ON", "AJAR"}, Write: "OPEN"}, {Value: "closed", Read: []resource.Value{"OFF"}},
		}
	}))
	n.run(d, nil)
	n.eventually("devices/door/reported/power", "closed")
	ver := n.want("door", "power", "open")
	require.Eventually(t, func() bool { return len(d.toys["door"].log()) == 1 }, testTimeout, pollInterval)
	require.Equal(t, []string{"power=OPEN"}, d.toys["door"].log())
	n.applied("door", "power", "open", ver)
	d.toys["door"].set("power", "AJAR")
	d.toys["door"].set("temp", "30")
	n.eventually("devices/door/reported/temp", "30")
	require.NotContains(t, n.published("devices/door/reported/power"), "AJAR")
	d.toys["door"].set("power", "OFF")
	n.eventually("devices/door/reported/power", "closed")
}

// TestAValueThatIsNoneIsNotShown: the mapper says Unknown, and doesn't stand by the value before.
func TestAValueThatIsNoneIsNotShown(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) {
		m.Spec.PropertyVisitors[0].Visitors[2].NotAvailable = []resource.Value{"-3276.8"}
		m.Spec.Properties[2].Step = 0.1
	}))
	n.run(d, nil)
	n.eventually("devices/lamp/reported/temp", "20")
	for none, message := range map[string]string{"-3276.8": "", "hot": `the device's value "hot" is not a `} {
		d.toys["lamp"].set("temp", none)
		require.Eventually(t, func() bool {
			text, _ := n.at("devices/lamp/problem/temp")
			why, err := resource.ParseProblem([]byte(text))
			return err == nil && why.Code == resource.ValueUnknown && why.Since != "" && why.Message != "" && strings.HasPrefix(why.Message, message)
		}, testTimeout, pollInterval)
		n.keep(broker.Message{Topic: "v1/nodes/n1/devices/lamp/reported/temp"}) // what the core does then
		d.toys["lamp"].set("temp", "20.04")
		n.eventually("devices/lamp/reported/temp", "20")
		d.toys["lamp"].set("temp", "22.149999")
		n.eventually("devices/lamp/reported/temp", "22.1")
		d.toys["lamp"].set("temp", "20")
		n.eventually("devices/lamp/reported/temp", "20")
	}
	require.NotContains(t, n.published("devices/lamp/reported/temp"), "-3276.8")
}

// One model is for devices with different words: the Device has them.
func TestWordsOfADeviceStandInItsConfig(t *testing.T) {
	d := Device{
		Config: map[string]string{"topic": "lamp", "w1": "an", "w0": "aus", "both": "x"},
		Properties: []Property{
			{Name: "on", Config: map[string]string{"state": "{topic}", "payload": "{both}"}, Words: []Word{
				{Value: "true", Read: []string{"{w1}", "{both}"}, Write: "{w1}"}, {Value: "false", Read: []string{"{w0}"}, Write: "{none}"},
			}},
		},
	}
	d.expandWords()
	require.Equal(t, []Word{{Value: "true", Read: []string{"an", "x"}, Write: "an"}, {Value: "false", Read: []string{"aus"}, Write: "{none}"}}, d.Properties[0].Words)
	require.Equal(t, map[string]string{"topic": "lamp", "both": "x"}, d.Config, "what nothing else refers to is no driver's any more")
}
