// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/stand"
)

// A core that may use 128 MB, with the hub away, takes telemetry until its limit for streams is
// reached and goes on: it uses less than 40 MB then, and when it is started again, by which nothing is loaded.
func TestASmallNodeStaysSmall(t *testing.T) {
	const (
		room  = 32 << 20 // limits.streams.bytes
		most  = 40 << 10 // KiB of resident memory
		topic = "v1/nodes/n1/devices/lamp/telemetry/power"
		extra = 20_000 // messages beyond the limit
	)
	members := memoryGroup(t, 128<<20) // ends after what is in it
	s := stand.New(t, 1)
	if members != "" {
		s.Wrap("core", "sh", "-c", "echo $$ >"+members+` && exec "$0" "$@"`)
	}
	s.Up("hub", "core")
	s.Create(stand.ModelManifest("lamp", "{name: power}") + stand.DeviceManifests("lamp", "virtual", "lamp"))
	s.InStep()
	var arrived atomic.Int64
	s.Watch(s.Hub.MQTT, "v1/nodes/n1/devices/lamp/telemetry/#", func(client.Message) { arrived.Add(1) })
	s.Node("n1").Net.Cut(faults.Reset)
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_link_up", 0) })

	figure := func(name string) float64 {
		all, err := s.Metrics(s.Node("n1").HTTP)
		require.NoError(t, err)
		return all[name]
	}
	sent := 0
	for figure(`edgebus_streams_dropped_messages_total{reason="full"}`) < extra {
		sent += floodBroker(t, s.Core(), topic, 20_000)
		require.Less(t, sent, 2_000_000, "the limit is never reached")
	}
	require.LessOrEqual(t, figure("edgebus_streams_waiting_bytes"), float64(room))
	require.Greater(t, figure("edgebus_streams_waiting_bytes"), 0.99*room)
	waiting := figure("edgebus_streams_waiting_messages")
	t.Logf("%.0f messages of %d wait; resident: %v", waiting, sent, residentMemory(t, s, "VmRSS", "VmHWM"))
	s.Eventually(stand.WaitTimeout, func() error { // what the flood has left is collected
		if kib := residentMemory(t, s, "VmRSS")[0]; kib > most {
			return fmt.Errorf("%d KiB are resident", kib)
		}
		return nil
	})

	require.NoError(t, s.Crash("core"))
	require.NoError(t, s.Start(t.Context(), "core"))
	require.InDelta(t, waiting, figure("edgebus_streams_waiting_messages"), 1)
	t.Logf("started again: %v", residentMemory(t, s, "VmRSS", "VmHWM"))
	require.Less(t, residentMemory(t, s, "VmHWM")[0], most)

	s.Node("n1").Net.Heal()
	s.Eventually(2*stand.WaitTimeout, func() error {
		if n := arrived.Load(); n < int64(waiting) {
			return fmt.Errorf("%d of %.0f arrived", n, waiting)
		}
		return nil
	})
	t.Logf("all forwarded: %v", residentMemory(t, s, "VmRSS", "VmHWM"))
	require.Less(t, residentMemory(t, s, "VmHWM")[0], most)
}

// memoryGroup makes a control group with so much memory, and returns the file that takes processes in; empty: the test
// may not make one.
func memoryGroup(t *testing.T, bytes int) string {
	t.Helper()
	for _, at := range []struct{ root, limit string }{
		{"/sys/fs/cgroup", "memory.max"}, {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
	} {
		dir := filepath.Join(at.root, fmt.Sprintf("edgebus-test-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		limit, err := os.OpenFile(filepath.Join(dir, at.limit), os.O_WRONLY, 0)
		if err != nil {
			continue // another version of control groups
		}
		_, err = fmt.Fprint(limit, bytes)
		if errors.Join(err, limit.Close()) == nil {
			return filepath.Join(dir, "cgroup.procs")
		}
	}
	t.Log("no control group can be made: the core's memory is only measured")
	return ""
}

// residentMemory are values of the core's /proc/PID/status, in KiB.
func residentMemory(t *testing.T, s *stand.Stand, names ...string) (kib []int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Pid("core")))
	require.NoError(t, err)
	for _, name := range names {
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, name+":"); ok {
				n, err := strconv.Atoi(strings.Fields(value)[0])
				require.NoError(t, err)
				kib = append(kib, n)
			}
		}
	}
	require.Len(t, kib, len(names))
	return kib
}

// floodBroker publishes messages of 40 bytes at QoS 1 over a connection of MQTT 3.1.1, and returns
// when all are acknowledged.
func floodBroker(t *testing.T, broker, topic string, n int) int {
	t.Helper()
	c, err := net.Dial("tcp", broker)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("\x10\x11\x00\x04MQTT\x04\x02\x00\x00\x00\x05flood"))
	require.NoError(t, err)
	in := bufio.NewReader(c)
	require.NoError(t, readAnswer(in, 0x20))
	written := make(chan error, 1)
	go func() {
		out := bufio.NewWriter(c)
		body := append(binary.BigEndian.AppendUint16(nil, uint16(len(topic))), topic...)
		for i := range n {
			packet := append([]byte{0x32, byte(len(body) + 2 + 40)}, body...)
			packet = binary.BigEndian.AppendUint16(packet, uint16(1+i%60_000))
			if _, err := fmt.Fprintf(out, "%s%040d", packet, i); err != nil {
				written <- err
				return
			}
		}
		written <- out.Flush()
	}()
	for range n {
		require.NoError(t, readAnswer(in, 0x40))
	}
	require.NoError(t, <-written)
	return n
}

// readAnswer reads a packet of four bytes and of a kind.
func readAnswer(in io.Reader, kind byte) error {
	var packet [4]byte
	if _, err := io.ReadFull(in, packet[:]); err != nil {
		return err
	}
	if packet[0] != kind {
		return errors.New("another packet than was expected")
	}
	return nil
}
