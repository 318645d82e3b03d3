// SPDX-License-Identifier: Apache-2.0

package cloud_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/cloud"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/test/natsservers"
	"github.com/edgebus/edgebus/topics/resource"
)

// appendCounter counts frames that were appended to a log.
type appendCounter struct {
	ordered.Log
	frames *atomic.Int64
}

func (l appendCounter) Append(ctx context.Context, after ordered.Position, frames ...[]byte) (ordered.Position, error) {
	l.frames.Add(int64(len(frames)))
	return l.Log.Append(ctx, after, frames...)
}

// ownWriter calls a function when a hub logs that it owns the log.
type ownWriter struct{ owned func() }

func (w ownWriter) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("this hub owns the log")) {
		w.owned()
	}
	return len(line), nil
}

// Each append waits for the disks of two servers: so a hub that has taken the log appends one frame before it serves, the numbers of the revisions to come, however many
// Devices there are.
func TestAHubAppendsOneFrameBetweenTakingTheLogAndServing(t *testing.T) {
	servers := natsservers.Start(t, 3)
	dir := t.TempDir()
	data, config := filepath.Join(dir, "hub"), filepath.Join(dir, "hub.yaml")
	st, err := disk.Open(disk.Options{Path: filepath.Join(data, hubdata.LogDir), Log: zerolog.Nop()})
	require.NoError(t, err)
	put := func(kind, namespace, name, text string) {
		t.Helper()
		_, err := st.Create(t.Context(), store.Object{Key: store.Key{Kind: kind, Namespace: namespace, Name: name}, Data: []byte(text)})
		require.NoError(t, err)
	}
	put(resource.KindDeviceModel, resource.DefaultNamespace, "m", `{"kind":"DeviceModel","metadata":{"name":"m","namespace":"default"},"spec":{"properties":[{"name":"a","type":"INT","accessMode":"ReadWrite"}]}}`)
	const nodes, devices = 3, 400
	for n := range nodes {
		name := fmt.Sprint("n", n)
		put(resource.KindNode, "", name, fmt.Sprintf(`{"kind":"Node","metadata":{"name":%q}}`, name))
	}
	for n := range devices {
		name := fmt.Sprint("d", n)
		put(resource.KindDevice, resource.DefaultNamespace, name, fmt.Sprintf(
			`{"kind":"Device","metadata":{"name":%q,"namespace":"default","uid":%q},"spec":{"nodeName":"n%d","deviceModelRef":{"name":"m"},"desired":{"a":"%d"}}}`, name, name, n%nodes, n))
	}
	require.NoError(t, st.Close())
	list := func(of []string) string { text, _ := json.Marshal(of); return string(text) } // strings
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "data: {dir: %q}\nmqtt: {listen: '127.0.0.1:0', websocket: {listen: ''}}\nhttp: {listen: '127.0.0.1:0'}\n"+
		"store: {engine: nats, peer: {listen: '127.0.0.1:0'}, nats: {servers: %s, monitor: %s, name: hub, silence: 500ms}}\n", data, list(servers.URLs()), list(servers.Monitors())), 0o600))
	var said bytes.Buffer
	require.Zero(t, cloud.Main([]string{"cluster", "import", "--config", config}, &said, &said), said.String())
	cfg, _, err := configs.Parse[configs.Hub]("cloudhub", "dev", []string{"--config", config}, io.Discard)
	require.NoError(t, err)

	// serve runs a hub until it serves, and returns what it has appended since the log was its own.
	serve := func() int64 {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var frames atomic.Int64
		appended := make(chan int64, 1)
		err := cloud.Run(ctx, cloud.Options{
			Config: cfg, Log: zerolog.New(ownWriter{func() { frames.Store(0) }}), Again: stop,
			Lost: func(why error) {
				if ctx.Err() == nil { // else it is to stop
					t.Error(why)
					stop()
				}
			},
			Through: func(l ordered.Log) ordered.Log { return appendCounter{l, &frames} },
			Ready: func(at daemon.Addresses) {
				if len(at.MQTT) > 0 { // it does not stand by
					appended <- frames.Load()
					stop()
				}
			},
		})
		require.NoError(t, err)
		return <-appended
	}
	require.Greater(t, serve(), int64(1), "the first of all makes the authority, too")
	for range 2 {
		require.Equal(t, int64(1), serve())
	}
}
