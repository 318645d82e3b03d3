// SPDX-License-Identifier: Apache-2.0

package orderedtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
)

// writerDir is the variable of the environment that makes a test's program the writer of testStopped, with the directory of the log.
const writerDir = "EDGEBUS_ORDEREDTEST_WRITER"

// beWriter appends frame after frame, and tells of each that was taken, until its input ends. Who has lost the end of the log reads on.
func beWriter(t *testing.T, open Open, dir string) {
	e := open(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	_, end, err := e.Bounds(ctx)
	require.NoError(t, err)
	for i := 0; ctx.Err() == nil; i++ {
		body := fmt.Sprint("writer ", i)
		at, err := e.Append(ctx, end, []byte(body))
		var moved *ordered.MovedError
		switch {
		case err == nil:
			fmt.Printf("taken %d %s\n", at, body)
			end = at
		case errors.As(err, &moved):
			fmt.Printf("moved %d\n", moved.Last)
			end = moved.Last
		default: // ctx, or nobody knows
			return
		}
	}
}

type stoppedWriter struct {
	t     *testing.T
	run   *exec.Cmd
	lines chan string
	taken map[string]ordered.Position
	moved int
}

func startWriter(t *testing.T, dir string) *stoppedWriter {
	parts := strings.Split(t.Name(), "/")
	parts = parts[:len(parts)-1] // the tests above that call Run
	for i := range parts {
		parts[i] = "^" + parts[i] + "$"
	}
	w := &stoppedWriter{t: t, lines: make(chan string, 1<<16), taken: make(map[string]ordered.Position)}
	w.run = exec.Command(os.Args[0], "-test.run="+strings.Join(parts, "/"))
	w.run.Env = append(os.Environ(), writerDir+"="+dir)
	w.run.Stderr = os.Stderr
	out, err := w.run.StdoutPipe()
	require.NoError(t, err)
	in, err := w.run.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, w.run.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(w.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			w.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		_ = w.run.Process.Signal(syscall.SIGCONT)
		ended := time.AfterFunc(30*time.Second, func() { _ = w.run.Process.Kill() })
		for range w.lines {
			continue
		}
		<-read
		_ = w.run.Wait()
		ended.Stop()
	})
	return w
}

// wait waits until the writer has had n more frames taken, or lost the end of the log once more.
func (w *stoppedWriter) wait(n int, moved bool) {
	w.t.Helper()
	late := time.After(60 * time.Second)
	for was, had := len(w.taken), w.moved; len(w.taken) < was+n || moved && w.moved == had; {
		select {
		case line, ok := <-w.lines:
			require.True(w.t, ok, "the writer ended")
			w.note(line)
		case <-late:
			require.Fail(w.t, "the writer appends nothing")
		}
	}
}

func (w *stoppedWriter) note(line string) {
	var at ordered.Position
	if _, err := fmt.Sscanf(line, "taken %d", &at); err == nil {
		_, body, _ := strings.Cut(line, " writer ")
		w.taken["writer "+body] = at
	} else if strings.HasPrefix(line, "moved ") {
		w.moved++
	}
}

// testStopped: a process that appends is stopped, in whatever it does, while another one appends. What it was answered is in the log, in its place, once; what the
// other was answered is; and when it goes on it is told that it has lost the end.
func testStopped(t *testing.T, e *logEnv) {
	w := startWriter(t, e.dir)
	ours := make(map[string]ordered.Position)
	for round := range 5 {
		w.wait(5, false)
		require.NoError(t, w.run.Process.Signal(syscall.SIGSTOP))
		_, end := e.bounds()
		for i := 0; i < 5; {
			body := fmt.Sprint("other ", round, " ", i)
			at, err := e.Append(t.Context(), end, []byte(body))
			var moved *ordered.MovedError
			if errors.As(err, &moved) { // what it had sent before it was stopped
				end = moved.Last
				continue
			}
			require.NoError(t, err)
			ours[body], end, i = at, at, i+1
		}
		require.NoError(t, w.run.Process.Signal(syscall.SIGCONT))
		w.wait(1, true)
	}
	require.NoError(t, w.run.Process.Signal(syscall.SIGSTOP))
	_, end := e.bounds()
	end = e.appendAfter(end, "last")
	var bodies []string
	found := make(map[string]ordered.Position)
	for f, err := range e.Read(t.Context(), 0) {
		require.NoError(t, err)
		body := string(f.Body)
		require.NotContains(t, found, body, "twice")
		found[body] = f.At
		if bodies = append(bodies, body); f.At == end {
			break
		}
	}
	for _, taken := range []map[string]ordered.Position{w.taken, ours} {
		for body, at := range taken {
			require.Equal(t, at, found[body], body)
		}
	}
	t.Logf("%d frames of the other process, %d of this one; it lost the end %d times", len(w.taken), len(ours), w.moved)
	last := -1
	for _, body := range bodies {
		var n int
		if _, err := fmt.Sscanf(body, "writer %d", &n); err == nil {
			require.Greater(t, n, last, "in order")
			last = n
		}
	}
}

// appendAfter appends a frame after a position, or after what others have appended meanwhile.
func (e *logEnv) appendAfter(end ordered.Position, body string) ordered.Position {
	for {
		at, err := e.Append(e.t.Context(), end, []byte(body))
		var moved *ordered.MovedError
		if !errors.As(err, &moved) {
			require.NoError(e.t, err)
			return at
		}
		end = moved.Last
	}
}
