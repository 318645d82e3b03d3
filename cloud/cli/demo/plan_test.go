// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTakenPortsAreNamedWithTheirOwner(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	taken := listener.Addr().String()
	d := &demo{hubMQTT: "127.0.0.1:0", hubHTTP: taken, coreMQTT: "127.0.0.1:0", coreHTTP: "127.0.0.1:0", modbus: "127.0.0.1:0"}
	err = d.checkPorts()
	require.ErrorContains(t, err, taken)
	require.ErrorContains(t, err, "--hub-http")
	require.NotContains(t, err.Error(), "--hub-mqtt")
	require.ErrorContains(t, err, "pid "+strconv.Itoa(os.Getpid()))
}

func TestProgramsAreFoundOrAskedFor(t *testing.T) {
	d := &demo{programs: t.TempDir()}
	_, err := d.findProgram("cloudhub")
	require.ErrorContains(t, err, "make build")
	require.NoError(t, os.WriteFile(filepath.Join(d.programs, "cloudhub"), nil, 0o755))
	path, err := d.findProgram("cloudhub")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(d.programs, "cloudhub"), path)
	t.Setenv("PATH", d.programs)
	path, err = (&demo{}).findProgram("cloudhub")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(d.programs, "cloudhub"), path)
}

func TestReadinessIsAwaited(t *testing.T) {
	ready := make(chan bool, 1)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-ready:
		default:
			ready <- true
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer api.Close()
	require.NoError(t, awaitReady(context.Background(), api.URL))
	require.NoError(t, awaitReady(context.Background(), api.Listener.Addr().String()))
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	require.ErrorContains(t, awaitReady(ctx, "127.0.0.1:1"), "refused")
}

func TestAFailedDemoKeepsItsDirectoryAndNamesIt(t *testing.T) {
	d := &demo{out: io.Discard}
	require.NoError(t, d.makeDataDir())
	defer os.RemoveAll(d.dataDir)
	d.group = newProcesses(filepath.Join(d.dataDir, "logs"))
	err := d.stop(errors.New("alas"))
	require.ErrorContains(t, err, "alas")
	require.ErrorContains(t, err, d.dataDir)
	require.DirExists(t, d.dataDir)
	d.group = newProcesses(filepath.Join(d.dataDir, "logs"))
	require.NoError(t, d.stop(nil))
	require.NoDirExists(t, d.dataDir)
}
