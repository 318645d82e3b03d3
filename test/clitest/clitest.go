// SPDX-License-Identifier: Apache-2.0

package clitest

import (
	"bytes"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/cloud/cli"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store/disk"
)

// StartHub is the hub's API over a real store, and the one that commands talk to.
func StartHub(t *testing.T, more ...func(*api.Options)) *httptest.Server {
	st, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	key, err := seal.Create(t.TempDir())
	require.NoError(t, err)
	o := api.Options{
		Objects: objects.New(objects.Options{Reader: st, Writer: st, Seal: key, Log: zerolog.Nop(), Managers: api.Managers()}),
		Reader:  st, Watcher: st, Log: zerolog.Nop(),
	}
	for _, change := range more {
		change(&o)
	}
	server := httptest.NewServer(api.New(o))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		require.NoError(t, st.Close())
	})
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "config"))
	t.Setenv("EDGEBUS_CONTEXT", "")
	t.Setenv("EDGEBUS_SERVER", server.URL)
	return server
}

// Run runs a command, which must end with that code, and returns what it said.
func Run(t *testing.T, code int, args ...string) (out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	got := cli.Run(args, &o, &e)
	require.Equal(t, code, got, "%v\n%s%s", args, o.String(), e.String())
	return o.String(), e.String()
}

// Plant is a Device with its model and its Node, as manifests.
const Plant = `
apiVersion: edgebus.io/v1alpha1
kind: Device
metadata: {name: lamp, labels: {room: hall}}
spec: {deviceModelRef: {name: dimmable}, nodeName: n1, protocol: {type: virtual}, desired: {brightness: 40}}
---
apiVersion: edgebus.io/v1alpha1
kind: DeviceModel
metadata: {name: dimmable}
spec:
  properties:
  - {name: brightness, type: int, accessMode: ReadWrite, maximum: 100}
  - {name: colorTemp_K, type: int, accessMode: ReadWrite}
---
apiVersion: edgebus.io/v1alpha1
kind: Node
metadata: {name: n1, labels: {site: here}}
`

// WriteFile writes a file in a directory, and returns its path.
func WriteFile(t *testing.T, dir, name, text string) string {
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// RunWithMoreTime runs a command with ever more time, until a busy machine gets as far as to say what is wanted.
func RunWithMoreTime(t *testing.T, code int, want string, args ...string) string {
	t.Helper()
	for limit := time.Second; ; limit *= 2 {
		var both bytes.Buffer
		got := cli.Run(append(args, "--timeout", limit.String()), &both, &both)
		if got == code && strings.Contains(both.String(), want) {
			return both.String()
		}
		require.Less(t, limit, 30*time.Second, "%v: code %d\n%s", args, got, both.String())
	}
}

// UseKubeconfigs writes files, and has $KUBECONFIG list them.
func UseKubeconfigs(t *testing.T, texts ...string) (paths []string) {
	dir := t.TempDir()
	for i, text := range texts {
		path := filepath.Join(dir, string(rune('a'+i)))
		if text != "" {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		}
		paths = append(paths, path)
	}
	t.Setenv("KUBECONFIG", strings.Join(paths, string(filepath.ListSeparator)))
	t.Setenv("EDGEBUS_CONTEXT", "")
	t.Setenv("EDGEBUS_SERVER", "")
	return paths
}

// ReadFile is what a file has.
func ReadFile(t *testing.T, path string) string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// StartHangingUpListener is no broker: it closes every connection.
func StartHangingUpListener(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = conn.Close()
		}
	}()
	return "mqtt://" + listener.Addr().String()
}
