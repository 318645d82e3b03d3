// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// A service of Type=notify tells systemd that it is ready, and says nothing without one.
func TestReadyIsToldToSystemd(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	for _, address := range []string{socket, "@" + socket} { // a file, and an abstract name
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
		require.NoError(t, err)
		defer l.Close()
		t.Setenv("NOTIFY_SOCKET", address)
		var log bytes.Buffer
		code := Run("a program", zerolog.New(&log), func(_ context.Context, p Program) error {
			p.Ready()
			return nil
		})
		require.Zero(t, code, log.String())
		require.NoError(t, l.SetReadDeadline(time.Now().Add(30*time.Second)))
		text := make([]byte, 100)
		n, err := l.Read(text)
		require.NoError(t, err, log.String())
		require.Equal(t, "READY=1", string(text[:n]))
	}

	var log bytes.Buffer
	p := Program{Log: zerolog.New(&log)}
	t.Setenv("NOTIFY_SOCKET", "")
	p.Ready()
	require.Empty(t, log.String())
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	p.Ready()
	require.Contains(t, log.String(), "NOTIFY_SOCKET")
}

// runUntilDone runs until its context ends, and then says so.
func runUntilDone(name string, ends chan<- string) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		ends <- name
		return nil
	}
}

func TestTheServerStopsLast(t *testing.T) {
	ends := make(chan string, 3)
	ctx, stop := context.WithCancel(context.Background())
	stop()
	require.NoError(t, RunGroup(ctx, runUntilDone("server", ends), runUntilDone("client", ends), runUntilDone("client", ends)))
	require.Equal(t, []string{"client", "client", "server"}, []string{<-ends, <-ends, <-ends})
}

func TestAllStopWithTheOneThatFails(t *testing.T) {
	failed := errors.New("failed")
	fails := func(context.Context) error { return failed }
	ends := make(chan string, 2)
	require.ErrorIs(t, RunGroup(context.Background(), fails, runUntilDone("client", ends)), failed)
	require.ErrorIs(t, RunGroup(context.Background(), runUntilDone("server", ends), fails), failed)
	require.Equal(t, []string{"client", "server"}, []string{<-ends, <-ends})
}

// A start that is given up because the program is to stop is no failure; what fails beside it is.
func TestAStartThatASignalInterruptsIsNoFailure(t *testing.T) {
	for _, c := range []struct {
		beside error
		code   int
	}{{nil, 0}, {context.Canceled, 0}, {io.ErrUnexpectedEOF, 1}} {
		code := Run("test", zerolog.Nop(), func(ctx context.Context, _ Program) error {
			require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
			<-ctx.Done()
			return errors.Join(fmt.Errorf("read: %w", ctx.Err()), c.beside)
		})
		require.Equal(t, c.code, code)
	}
	require.Equal(t, 1, Run("test", zerolog.Nop(), func(context.Context, Program) error { return context.Canceled }))
}
