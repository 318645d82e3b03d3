// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/discovery/embedded"
)

// Main is the program edgediscovery. It returns the exit code: 0, 1 when it failed, 2 when the command line is wrong.
func Main(args []string, stdout, stderr io.Writer) int {
	if daemon.PrintVersion("edgediscovery", configs.NormalizeArgs(args), stdout) {
		return 0
	}
	code := 0
	root := newCommand(&code, stdout, stderr)
	root.SetArgs(configs.NormalizeArgs(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.Execute(); err != nil {
		fmt.Fprintf(stderr, "edgediscovery: %v\n", err)
		return 2
	}
	return code
}

func newCommand(code *int, stdout, stderr io.Writer) *cobra.Command {
	var names []string
	for _, p := range embedded.Programs() {
		names = append(names, p.Name)
	}
	root := &cobra.Command{
		Use: "edgediscovery", Short: "Has discovery handlers look for the devices that a node's Configurations ask for",
		Long: `edgediscovery runs on a node, beside edgecore, as an unprivileged user. It has discovery handlers look for what the node's
Configurations ask for, and publishes each device that they find, and how they are, on the node's broker.

It signs in at the Unix socket of edgecore, as a user with the role discoverer. Handlers are programs in any language: they register
over gRPC at agent-registration.sock in handlers.dir, as Akri's handlers do. Handlers that are linked in: ` + strings.Join(names, ", ") + `.`,
		Example: `  edgediscovery                                       # run, as the unit edgediscovery.service does
  edgediscovery --print-config > /etc/edgebus/discovery.yaml
  edgediscovery --check-config                        # is anything wrong with the settings?`,
		Version: daemon.Version(), Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, done, err := configs.LoadFlags[configs.Discovery]("edgediscovery", c.Flags(), stdout)
			if err != nil || done {
				return err
			}
			*code = daemon.Run("edgediscovery", configs.Logger(stderr, cfg.Log), func(ctx context.Context, p daemon.Program) error {
				return Run(ctx, Options{Config: cfg, Log: p.Log, Ready: p.Ready})
			})
			return nil
		},
	}
	root.Flags().SortFlags = false
	if err := configs.AddFlags[configs.Discovery]("edgediscovery", root.Flags()); err != nil {
		root.RunE = func(*cobra.Command, []string) error { return err }
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}
