// SPDX-License-Identifier: Apache-2.0

// Package devices tries the mappers with devices that others have made: each script of testdata has one of node/ or of Debian's
// packages, a hub, a node and the mapper.
package devices

import (
	"bufio"
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/topics/resource"
)

func requireLibraries(t *testing.T) {
	if _, err := os.Stat("node/node_modules"); err != nil {
		require.Empty(t, os.Getenv("CI"), "the devices' libraries are missing: `make needs-clients` installs them")
		t.Skip("the devices' libraries are missing: `make needs-clients` installs them")
	}
}

func TestDevices(t *testing.T) {
	requireLibraries(t)
	harness.Scripts(t, "testdata")
}

// Each of the thousands of definitions that zigbee2mqtt is made with becomes a DeviceModel that the API takes.
func TestAModelOfEachZigbeeDefinition(t *testing.T) {
	requireLibraries(t)
	programs, err := harness.Programs()
	require.NoError(t, err)
	list, err := exec.CommandContext(t.Context(), "node", "node/zigbee.mjs").Output()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "list.json")
	require.NoError(t, os.WriteFile(file, list, 0o600))
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "mapper-mqtt"), "browse", "--list", file).Output()
	require.NoError(t, err)
	devices := 0
	for _, text := range bytes.Split(out, []byte("\n---\n")) {
		if bytes.Contains(text, []byte("kind: DeviceModel\n")) {
			var model resource.DeviceModel
			require.NoError(t, yaml.UnmarshalStrict(text, &model), "%s", text)
			require.NoError(t, model.Validate(), "%s", text)
			continue
		}
		var device resource.Device
		require.NoError(t, yaml.UnmarshalStrict(text, &device), "%s", text)
		require.NoError(t, device.Validate(), "%s", text)
		devices++
	}
	require.Greater(t, devices, 4000)
}

// A server with odd names, circles, deep and wide trees becomes a model that the API takes, and what is left out is told.
func TestAModelOfAServerThatIsHardToBrowse(t *testing.T) {
	requireLibraries(t)
	programs, err := harness.Programs()
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	server := exec.CommandContext(t.Context(), "node", "node/opcua-tree.mjs", port, t.TempDir())
	said, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	for lines := bufio.NewScanner(said); ; {
		require.True(t, lines.Scan(), "the server doesn't start")
		if lines.Text() == "listening" {
			break
		}
	}
	browse := exec.CommandContext(t.Context(), filepath.Join(programs, "mapper-opcua"), "browse", "opc.tcp://127.0.0.1:"+port, "--security-policy", "None", "--data-dir", t.TempDir())
	var progress bytes.Buffer
	browse.Stderr = &progress
	out, err := browse.Output()
	require.NoError(t, err, progress.String())
	require.Contains(t, progress.String(), "left out: what is deeper than 20 (begin there by --root): 1 times, first Deep/Level0/")
	require.Contains(t, progress.String(), "left out: what is beyond 10000 nodes (begin there by --root): ")
	require.Contains(t, progress.String(), "left out: what is beyond the 4096 of a model (choose by --filter or --root): ")
	documents := bytes.Split(out, []byte("\n---\n"))
	require.Len(t, documents, 2)
	var model resource.DeviceModel
	require.NoError(t, yaml.UnmarshalStrict(documents[0], &model))
	require.NoError(t, model.Validate())
	titles := map[string]resource.Property{}
	for _, p := range model.Spec.Properties {
		titles[p.Title] = p
	}
	require.Len(t, model.Spec.Properties, 4096)
	for title, name := range map[string]string{"Größe/µm": "names-groesse-um", "###": "names", "🌡": "names-2", "InACircle": "a-b-inacircle", "Value19": "level12-level13-level14-level15-level16-level17-level18-value19"} {
		require.Equal(t, name, titles[title].Name, title)
	}
	for title, typ := range map[string]resource.DataType{"UInt64": resource.TypeInt, "List": resource.TypeArray, "Matrix": resource.TypeArray, "Nothing": resource.TypeDouble, "ByteString": resource.TypeBytes, "Guid": resource.TypeString} {
		require.Equal(t, typ, titles[title].Type, title)
	}
}
