// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/alerts"
)

// Debian's Prometheus Alertmanager gets an alarm when it is raised, and knows when it has ended.
func TestAlertmanagerKnowsOfAnAlarmUntilItEnds(t *testing.T) {
	program, err := exec.LookPath("prometheus-alertmanager")
	require.NoError(t, err, "make needs-clients comes before")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	dir := t.TempDir()
	config := filepath.Join(dir, "alertmanager.yml")
	require.NoError(t, os.WriteFile(config, []byte("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, program, "--config.file", config, "--storage.path", dir, "--web.listen-address", address, "--cluster.listen-address=")
	require.NoError(t, cmd.Start())
	defer func() {
		stop()
		_ = cmd.Wait()
	}()

	a, err := alerts.New(alerts.Options{Instance: "hub", Metrics: prometheus.NewRegistry(), Log: zerolog.Nop(), Receivers: alerts.Receivers{Alertmanager: alerts.Endpoint{URL: "http://" + address}}})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	known := func() (list []struct{ Labels, Annotations map[string]string }) {
		res, err := http.Get("http://" + address + "/api/v2/alerts")
		if err != nil {
			return nil
		}
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		if err == nil && res.StatusCode == http.StatusOK {
			require.NoError(t, json.Unmarshal(text, &list))
		}
		return list
	}
	alarm := broker.Message{Topic: "v1/nodes/n1/devices/boiler/alarms/temperature", Payload: []byte(`[{"name":"hot","severity":"high","since":"` + time.Now().UTC().Format(time.RFC3339) + `","value":"81","message":"temperature is 81 °C, above 80 °C"}]`)}
	a.Follow(alarm) // Alertmanager may not listen yet: it is tried again
	require.Eventually(t, func() bool { return len(known()) == 1 }, 30*time.Second, 50*time.Millisecond)
	one := known()[0]
	require.Equal(t, map[string]string{"alertname": "EdgebusDeviceAlarm", "instance": "hub", "node": "n1", "device": "boiler", "property": "temperature", "alarm": "hot", "severity": "high"}, one.Labels)
	require.Equal(t, "boiler: temperature is 81 °C, above 80 °C", one.Annotations["summary"])
	alarm.Payload = nil
	a.Follow(alarm)
	require.Eventually(t, func() bool { return len(known()) == 0 }, 30*time.Second, 50*time.Millisecond)
}
