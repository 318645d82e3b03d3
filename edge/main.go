package edge

import (
	"context"
	"fmt"
	"io"

	"github.com/edgebus/edgebus/configs"
)

// Main is the program edgecore: it reads the configuration, runs a core until it
// is told to stop, and returns the exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	cfg, done, err := configs.Parse[configs.Core]("edgecore", args, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "edgecore:", err)
		return 2
	}
	if done {
		return 0
	}
	return configs.Daemon("edgecore", stderr, cfg.Log, func(ctx context.Context, p configs.Program) error {
		return Run(ctx, Options{Config: cfg, Version: p.Version, Log: p.Log})
	})
}
