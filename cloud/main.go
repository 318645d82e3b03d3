package cloud

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/configs/daemon"
)

// gcPercent is how much garbage may gather, in percent of what is in use. With the runtime's own 100 a hub that
// knows a hundred thousand Devices takes half as much memory again (docs/adr/0021).
const gcPercent = 50

// Main is the program cloudhub: it reads the configuration, runs a hub until it
// is told to stop, and returns the exit code.
// check, backup and restore look after the data of one that is stopped; backup also of one that runs.
func Main(args []string, stdout, stderr io.Writer) int {
	if code, mine := keeper().Main(args, stdout, stderr); mine {
		return code
	}
	cfg, done, err := configs.Parse[configs.Hub]("cloudhub", args, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "cloudhub:", err)
		return 2
	}
	if done {
		return 0
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	return daemon.Run("cloudhub", configs.Logger(stderr, cfg.Log), func(ctx context.Context, p daemon.Program) error {
		return Run(ctx, Options{Config: cfg, Version: p.Version, Log: p.Log, Started: func(Addresses) { p.Ready() }})
	})
}
