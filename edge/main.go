package edge

import (
	"context"
	"fmt"
	"io"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/configs/daemon"
)

// Main is the program edgecore: it reads the configuration, runs a core until it
// is told to stop, and returns the exit code.
// check, backup and restore look after the data of one that is stopped; backup also of one that runs.
func Main(args []string, stdout, stderr io.Writer) int {
	if code, mine := keeper().Main(args, stdout, stderr); mine {
		return code
	}
	cfg, done, err := configs.Parse[configs.Core]("edgecore", args, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "edgecore:", err)
		return 2
	}
	if done {
		return 0
	}
	return daemon.Run("edgecore", configs.Logger(stderr, cfg.Log), func(ctx context.Context, p daemon.Program) error {
		return Run(ctx, Options{Config: cfg, Version: p.Version, Log: p.Log, Started: func(Addresses) { p.Ready() }})
	})
}
