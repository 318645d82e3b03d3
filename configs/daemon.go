package configs

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/configs/memory"
)

// stopTime is how long a program may take to stop in order.
const stopTime = 10 * time.Second

// Program is what a running program knows of itself.
type Program struct {
	Version string
	Log     zerolog.Logger
}

// A machine with less memory than small has garbage collected at a quarter of what is in use: there memory is
// scarcer than processor time.
const (
	small          = 512 << 20
	smallGCPercent = 25
)

// boundMemory has the collector work harder before the system ends the program for its memory. What the environment says
// (GOMEMLIMIT, GOGC) goes before it.
func boundMemory() {
	limit := memory.Limit()
	if debug.SetMemoryLimit(-1) == math.MaxInt64 { // GOMEMLIMIT says nothing else
		debug.SetMemoryLimit(limit / 10 * 9)
	}
	if os.Getenv("GOGC") == "" && limit < small {
		debug.SetGCPercent(smallGCPercent)
	}
}

// Daemon runs a program until it ends or the system asks it to (SIGTERM, SIGINT),
// and returns its exit code. A second signal, or stopping for too long, ends it at once:
// everything that was acknowledged is on disk by then.
func Daemon(name string, stderr io.Writer, cfg Log, run func(context.Context, Program) error) int {
	boundMemory()
	p := Program{Version: Version(), Log: Logger(stderr, cfg)}
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
	if err != nil {
		p.Log.Error().Err(err).Msg(name + " failed")
		return 1
	}
	return 0
}

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

// Version is the version that the program was built from.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "dev"
	}
	return info.Main.Version
}
