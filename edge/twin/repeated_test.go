// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

var repeatedReport = broker.UserProperty{Key: "repeated", Value: "true"}

// kill starts the twin again on what is on disk now, as after a kill.
func (r *rig) kill() {
	r.t.Helper()
	dir := r.t.TempDir()
	require.NoError(r.t, os.CopyFS(dir, os.DirFS(r.dir)))
	r.stop()
	r.dir = dir
	r.restart()
}

func version(m broker.Message) int {
	n, _ := strconv.Atoi(userProperty(m, "ver"))
	return n
}

// A value that its mapper reports again is acknowledged before it is on disk, and shown, on both sides. A core that is killed may
// show an older one, with a newer version; then it goes on with its hub as if nothing had happened.
func TestARepeatedReportMayBeLostInACrash(t *testing.T) {
	const key = "devices/hall/reported/temperature"
	r := newJoinedRig(t)
	r.inStep()
	require.NoError(t, r.send("devices/hall/reported/setpoint", "20", forVersion("1")))
	for n := range 50 {
		require.NoError(t, r.send(key, strconv.Itoa(n), repeatedReport))
	}
	last := r.value(key, "49")
	r.inStep()
	require.Equal(t, "49", r.atHub(key))
	lineage := r.lineage()

	r.kill()
	m := r.shows(key, func(m broker.Message) bool { return string(m.Payload) != "49" })
	require.Contains(t, []string{"0", "1"}, string(m.Payload))
	require.Greater(t, version(m), version(last))
	r.connect()
	r.inStep()
	require.Equal(t, string(m.Payload), r.atHub(key))
	require.NoError(t, r.send(key, "49", repeatedReport))
	require.Greater(t, version(r.value(key, "49")), version(m))
	r.inStep()
	require.Equal(t, "49", r.atHub(key))
	require.Equal(t, lineage, r.lineage(), "neither side has begun anew")
	r.restart()
	require.Equal(t, "49", string(r.value(key, "49").Payload), "a core that stops has written it")
}

func (r *rig) lineage() uint64 {
	r.hub.Lock()
	defer r.hub.Unlock()
	return r.up.Lineage().Nonce
}

// What is reported without that property, or answers a desired value, is on disk before its acknowledgement.
func TestOtherReportsOutliveACrash(t *testing.T) {
	r := newJoinedRig(t)
	desired := r.wantShown("devices/hall/desired/setpoint", "20", 1)
	for n := range 20 {
		require.NoError(t, r.send("devices/hall/reported/temperature", strconv.Itoa(n)))
		require.NoError(t, r.send("devices/hall/reported/mode", strconv.Itoa(n), repeatedReport))
		require.NoError(t, r.send("devices/hall/reported/setpoint", strconv.Itoa(10+n), repeatedReport))
	}
	require.NoError(t, r.send("devices/hall/reported/setpoint", "20", repeatedReport, forVersion(userProperty(desired, "ver"))))
	r.kill()
	r.value("devices/hall/reported/temperature", "19")
	r.value("devices/hall/reported/setpoint", "20")
	r.value("devices/hall/reported/mode", "19") // of the same Device
}

// A PUBACK means that the value is on disk to each client that doesn't say otherwise, also if a mapper that does has published it before.
func TestAnotherClientsReportOfTheSameValueIsOnDisk(t *testing.T) {
	const key = "devices/hall/reported/temperature"
	r := newJoinedRig(t)
	for n := range 50 {
		require.NoError(t, r.send(key, strconv.Itoa(n), repeatedReport))
	}
	require.NoError(t, r.send(key, "49"))
	r.kill()
	r.value(key, "49")
}

// TestWhatWaitsIsWrittenWithinAMinute: also when nothing else happens, and of values that stay on the node.
func TestWhatWaitsIsWrittenWithinAMinute(t *testing.T) {
	for _, local := range [][]string{nil, {"temperature"}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.bind(resource.Device{Metadata: resource.Meta{Name: "hall", UID: "u1"}, Spec: resource.DeviceSpec{
				NodeName: "n1", Protocol: resource.Protocol{Type: "virtual"}, Local: local,
			}}, thermostat)
			r.connect()
			r.shows("devices/hall", func(m broker.Message) bool { return len(m.Payload) > 0 })
			r.cut()
			for n := range 50 {
				require.NoError(t, r.send("devices/hall/reported/temperature", strconv.Itoa(n), repeatedReport))
			}
			last := r.value("devices/hall/reported/temperature", "49")
			time.Sleep(flushInterval + time.Second) // of synctest's clock: nothing else happens meanwhile
			r.kill()
			m := r.value("devices/hall/reported/temperature", "49")
			require.Equal(t, version(last), version(m), "nothing is lost")
			require.NoError(t, r.send("devices/hall/reported/temperature", "50", repeatedReport))
			require.NoError(t, r.send("devices/hall/reported/temperature", "51", repeatedReport))
			last = r.value("devices/hall/reported/temperature", "51")
			require.NoError(t, r.send("devices/hall/reported/temperature", "52", repeatedReport))
			r.kill()
			m = r.value("devices/hall/reported/temperature", "51")
			require.Greater(t, version(m), version(last)+1)
			r.stop()
		})
	}
}
