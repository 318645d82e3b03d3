// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	mqtt "github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

// A mosquitto bridge sends at once all that has waited, whatever the receive maximum says: all of it arrives, over one connection, and at QoS 2 once.
func TestAllThatWaitedInAMosquittoBridgeArrives(t *testing.T) {
	stand.RequirePrograms(t, "/usr/sbin/mosquitto")
	const messages = 3000 // limits.receiveMaximum is 1,024
	s := stand.New(t, 1)
	s.Up("hub")
	line := s.Node("n1").Net
	line.Cut(faults.Reset)
	for _, protocol := range []string{"mqttv311", "mqttv50"} {
		for _, qos := range []byte{1, 2} {
			name := fmt.Sprintf("%s-%d", protocol, qos)
			address := harness.FreeAddress(t)
			_, port, _ := strings.Cut(address, ":")
			conf := filepath.Join(s.Dir, name+".conf")
			require.NoError(t, os.WriteFile(conf, []byte("listener "+port+" 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nlog_type all\nconnection "+name+
				"\naddress "+line.Addr()+"\nbridge_protocol_version "+protocol+"\ncleansession false\nrestart_timeout 1\ntopic "+name+"/# out 2\n"), 0o600))
			require.NoError(t, s.Run(t.Context(), name, []string{"/usr/sbin/mosquitto", "-c", conf}, address))
			c := s.Client(address, nil)
			var all errgroup.Group
			all.SetLimit(16) // of mosquitto's own receive maximum, which is 20
			for i := range messages {
				all.Go(func() error {
					return c.Publish(t.Context(), mqtt.Message{Topic: name + "/" + strconv.Itoa(i%50), Payload: []byte(strconv.Itoa(i)), QoS: qos})
				})
			}
			require.NoError(t, all.Wait())
		}
	}
	var mu sync.Mutex
	came := make(map[string]map[string]int)
	s.Client(s.Hub.MQTT, func(o *mqtt.Options) {
		for _, protocol := range []string{"mqttv311", "mqttv50"} {
			for _, qos := range []byte{1, 2} {
				o.Subscriptions = append(o.Subscriptions, mqtt.Subscription{Filter: fmt.Sprintf("%s-%d/#", protocol, qos), QoS: 2})
			}
		}
		o.OnMessage = func(m mqtt.Message) {
			mu.Lock()
			defer mu.Unlock()
			name, _, _ := strings.Cut(m.Topic, "/")
			if came[name] == nil {
				came[name] = make(map[string]int)
			}
			came[name][string(m.Payload)]++
		}
	})
	line.Heal()
	s.Eventually(2*stand.WaitTimeout, func() error {
		mu.Lock()
		defer mu.Unlock()
		for _, name := range []string{"mqttv311-1", "mqttv311-2", "mqttv50-1", "mqttv50-2"} {
			if n := len(came[name]); n < messages {
				return fmt.Errorf("%s: %d of %d have come", name, n, messages)
			}
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	for name, payloads := range came {
		for payload, times := range payloads {
			require.Equal(t, 1, times, "%s: message %s", name, payload)
		}
	}
	log, err := os.ReadFile(s.LogFile("hub"))
	require.NoError(t, err)
	require.NotContains(t, string(log), "receive maximum")
}
