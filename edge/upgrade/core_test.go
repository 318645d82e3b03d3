// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// newSleepingCore is a child whose core sleeps.
func newSleepingCore(t *testing.T) *childCore {
	t.Helper()
	dir := t.TempDir()
	program, err := exec.LookPath("sleep")
	require.NoError(t, err)
	link := filepath.Join(dir, "sleep")
	require.NoError(t, os.Symlink(program, link))
	c := newChildCore(link, []string{"1000"}, dir, filepath.Join(dir, "log"), time.Minute, zerolog.Nop())
	t.Cleanup(func() { require.NoError(t, c.end(context.Background())) })
	return c
}

// A process that has the number of a core that has ended is not the core: it is not taken for it, and gets no signal.
func TestAProcessWithTheNumberOfAnEndedCoreIsLeftAlone(t *testing.T) {
	c := newSleepingCore(t)
	other := exec.Command("sleep", "1000")
	require.NoError(t, other.Start())
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	c.note(other.Process.Pid, "") // as an earlier agent found it, before it ended
	pid, why := c.process(t.Context())
	require.Zero(t, pid)
	require.Equal(t, "it has ended", why)
	c.note(other.Process.Pid, "")
	c.tell(other.Process.Pid, os.Kill)
	require.NoError(t, c.end(t.Context()))
	select {
	case <-ended:
		t.Fatal("another process was ended in the place of the core")
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, other.Process.Kill())
	<-ended
}

func TestACoreIsFoundAndEndedByTheNextAgent(t *testing.T) {
	c := newSleepingCore(t)
	require.NoError(t, c.start())
	next := newChildCore(c.program, c.args, c.data, c.log, time.Minute, zerolog.Nop())
	pid, _ := next.process(t.Context())
	own, _ := c.process(t.Context())
	require.NotZero(t, own)
	require.Equal(t, own, pid)
	require.NoError(t, next.end(t.Context()))
	require.Eventually(t, func() bool { pid, _ := c.process(t.Context()); return pid == 0 }, time.Minute, time.Millisecond)
	require.Zero(t, c.unreaped.Load())
}

// A server that takes connections and says nothing holds up no upgrade, in TLS either.
func TestAServerThatDoesNotSpeakTLSIsGivenUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client := sourceClient(20 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, _, err = httpGet(ctx, client, "https://"+l.Addr().String()+"/x", "")
	require.Error(t, err)
	require.NoError(t, ctx.Err())
	var late net.Error
	require.True(t, errors.As(err, &late) && late.Timeout(), err)
}
