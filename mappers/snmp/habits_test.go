// SPDX-License-Identifier: Apache-2.0

package snmp

import (
	"strconv"
	"testing"

	"github.com/gosnmp/gosnmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
)

func TestTheHabitsOfAllProtocols(t *testing.T) {
	const temperature, level = ".1.3.9.1.0", ".1.3.9.5.0"
	drivertest.RunHabits(t, func(t *testing.T) drivertest.HabitRig {
		p := drivertest.NewHabitPlay()
		var agents []*fakeAgent
		for n := range 20 {
			a := newFakeAgent(t)
			a.playRequests(func(q *gosnmp.SnmpPacket) drivertest.PlayedRequest {
				return p.Request(n, len(q.Variables) > 0 && q.Variables[0].Name == temperature, q.PDUType == gosnmp.SetRequest)
			})
			agents = append(agents, a)
		}
		return drivertest.HabitRig{
			Driver: New(Options{}),
			Device: func(n int) mappers.Device {
				low, high := 0.0, 100.0
				first := newProperty("temperature", mappers.Float, false, "oid", temperature, "scale", "0.1")
				first.NotAvailable = []string{"-3276.8"}
				second := newProperty("level", mappers.Int, true, "oid", level)
				second.Minimum, second.Maximum = &low, &high
				return mappers.Device{
					Name: "agent-" + strconv.Itoa(n), Properties: []mappers.Property{first, second},
					Config: map[string]string{"address": agents[n].conn.LocalAddr().String(), "maxOids": "1", "timeout": "400ms"},
				}
			},
			Set: func(n int, habit drivertest.DeviceHabit, on bool) {
				if habit == drivertest.HabitNoValue {
					agents[n].put(temperature, gosnmp.SnmpPDU{Type: gosnmp.Integer, Value: map[bool]int{true: -32768, false: 215}[on]})
				}
				p.Set(n, habit, on)
			},
			Wrote: p.Wrote,
			Missing: map[drivertest.DeviceHabit]string{
				drivertest.HabitClosesConnection: "SNMP over UDP has no connections",
				drivertest.HabitStranger:         "nobody answers a request in the agent's place: a proxy that doesn't reach it is silent",
			},
		}
	})
}

// playRequests has a function decide how each request is treated.
func (a *fakeAgent) playRequests(play func(*gosnmp.SnmpPacket) drivertest.PlayedRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.play = play
}

func TestACommandSetsAnObject(t *testing.T) {
	a := newFakeAgent(t)
	d := a.device()
	d.Commands = []mappers.Property{newProperty("full", "", false, "oid", "1.3.9.5.0", "value", "100"), newProperty("set", mappers.Int, false, "oid", "1.3.9.5.0")}
	s := openUPS(t, d)
	for _, c := range []struct{ command, payload, want string }{{"full", "", "100"}, {"set", "12", "12"}} {
		_, err := s.Command(t.Context(), c.command, []byte(c.payload))
		require.NoError(t, err)
		got, err := s.ReadBatch(t.Context(), []string{"load"})
		require.NoError(t, err)
		assert.Equal(t, c.want, got["load"].Value)
	}
	_, err := s.Command(t.Context(), "set", []byte("101"))
	require.ErrorContains(t, err, "WrongValue")
}
