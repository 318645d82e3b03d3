package agent

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/configs/daemon"
)

// Main is the program edgeagent. It returns the exit code: 0, 1 when it failed, 2 when it was told something impossible.
func Main(args []string, stdout, stderr io.Writer) int {
	code := 0
	root := command(&code, stdout, stderr)
	root.SetArgs(configs.Asked(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.Execute(); err != nil {
		fmt.Fprintf(stderr, "edgeagent: %v\n", err)
		if errors.As(err, new(*ranError)) {
			return 1
		}
		return 2
	}
	return code
}

// ranError is of a command that was understood and went wrong.
type ranError struct{ error }

func command(code *int, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: "edgeagent", Short: "The agent, which makes this host what the node's spec says",
		Long: `edgeagent runs as root on a node, beside edgecore, and makes the host what the node's spec says: files, applications,
the OS image. All of a version, or nothing of it: what fails is rolled back, reported, and not tried again until it changes.

It signs in at the Unix socket of edgecore, where root is the user agent. What a spec may do is decided by this node's own
settings: files.roots says where files may be, commands which programs hooks may run.`,
		Example: `  edgeagent                                       # run, as the unit edgeagent.service does
  edgeagent --print-config > /etc/edgebus/agent.yaml
  edgeagent --check-config                        # is anything wrong with the settings?`,
		Version: daemon.Version(), Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, done, err := configs.Flagged[configs.Agent]("edgeagent", c.Flags(), stdout)
			if err != nil || done {
				return err
			}
			*code = daemon.Run("edgeagent", configs.Logger(stderr, cfg.Log), func(ctx context.Context, p daemon.Program) error {
				return Run(ctx, Options{Config: cfg, Version: p.Version, Log: p.Log, Ready: p.Ready})
			})
			return nil
		},
	}
	root.Flags().SortFlags = false
	if err := configs.AddFlags[configs.Agent]("edgeagent", root.Flags()); err != nil {
		root.RunE = func(*cobra.Command, []string) error { return err }
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}
