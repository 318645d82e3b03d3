// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/topics/limits"
)

// stopTime is how long a program may take to stop in order.
const stopTime = 10 * time.Second

// Program is what a running program knows of itself.
type Program struct {
	Version string
	Log     zerolog.Logger
}

// Run runs a program until it ends or the system asks it to (SIGTERM, SIGINT), and returns its exit code. A second
// signal, or stopping for longer than 10 seconds, ends it at once: what was acknowledged is on disk by then.
func Run(name string, log zerolog.Logger, run func(context.Context, Program) error) int {
	boundMemory()
	p := Program{Version: Version(), Log: log}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, p) }()
	p.Log.Info().Str("version", p.Version).Int("pid", os.Getpid()).Msg(name + " starts")
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		stop() // the next signal is not caught
		p.Log.Info().Msg(name + " stops")
		select {
		case err = <-ended:
		case <-time.After(stopTime):
			p.Log.Error().Stringer("after", stopTime).Msg(name + " did not stop in time and is ended")
			return 1
		}
	}
	if err != nil && (ctx.Err() == nil || !isCanceled(err)) {
		p.Log.Error().Err(err).Msg(name + " failed")
		return 1
	}
	return 0
}

// isCanceled reports whether an error says that a context was canceled, and nothing else: of what was begun when the program was to stop, such as its start.
func isCanceled(err error) bool {
	if joined, is := err.(interface{ Unwrap() []error }); is {
		return !slices.ContainsFunc(joined.Unwrap(), func(one error) bool { return !isCanceled(one) })
	}
	return errors.Is(err, context.Canceled)
}

// RunGroup runs all functions until ctx ends or one of them returns an error. Then the clients are stopped first, and
// the server when they have returned: until then it answers what they asked. If the server returns, they are stopped.
func RunGroup(ctx context.Context, server func(context.Context) error, clients ...func(context.Context) error) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var serverErr error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		serverErr = server(serving)
	}()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		select {
		case <-ended:
			return serverErr
		case <-ctx.Done():
			return nil
		}
	})
	for _, run := range clients {
		g.Go(func() error { return run(ctx) })
	}
	err := g.Wait()
	stop()
	<-ended
	return cmp.Or(err, serverErr)
}

// Addresses are those that a program's listeners are bound to, in the order of its settings.
type Addresses struct{ MQTT, HTTP []net.Addr }

// Ready tells systemd that the program listens, if it runs as a service of Type=notify: until then `systemctl start` waits.
func (p Program) Ready() {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"}) // a leading @ is an abstract name
	if err == nil {
		_, err = conn.Write([]byte("READY=1"))
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		p.Log.Error().Err(err).Msg("systemd was not told that the program is ready, and will end it: NOTIFY_SOCKET can't be written to")
	}
}

// version is the version that a release is given by its build: -ldflags '-X github.com/edgebus/edgebus/broker/daemon.version=v1.2.0'.
var version string

// Version is the version that the program was built from.
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "dev"
	}
	return info.Main.Version
}

// PrintVersion prints the version of a program, if its arguments ask for it. Cobra's templates would do so too, and with them the linker keeps
// every method of every type: a quarter of a program.
func PrintVersion(name string, args []string, out io.Writer) bool {
	if len(args) != 1 || args[0] != "--version" && args[0] != "-v" {
		return false
	}
	_, _ = fmt.Fprintln(out, name, Version())
	return true
}

// On a machine with less memory than small, garbage is collected when the heap has grown by smallGCPercent: memory is
// scarcer there than processor time.
const (
	smallMemory    = 512 << 20
	smallGCPercent = 25
)

// boundMemory has the collector work harder before the system ends the program for its memory. GOMEMLIMIT and GOGC take
// precedence.
func boundMemory() {
	limit := limits.MemoryLimit()
	if debug.SetMemoryLimit(-1) == math.MaxInt64 { // GOMEMLIMIT is not set
		debug.SetMemoryLimit(limit / 10 * 9)
	}
	if os.Getenv("GOGC") == "" && limit < smallMemory {
		debug.SetGCPercent(smallGCPercent)
	}
}
