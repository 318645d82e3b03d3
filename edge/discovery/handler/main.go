// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/configs"
)

// Main is a stand-alone handler as a program, discovery-NAME. It returns the exit code: 0, 1 when it failed, 2 when the command
// line is wrong.
func Main(p Program, args []string, stdout, stderr io.Writer) int {
	name := "discovery-" + strings.ToLower(p.Name)
	if daemon.PrintVersion(name, args, stdout) {
		return 0
	}
	o := Options{Dir: configs.HandlersDir}
	if dir := os.Getenv("DISCOVERY_HANDLERS_DIRECTORY"); dir != "" {
		o.Dir = dir
	}
	log := configs.Log{Level: "info", Format: "auto"}
	code := 0
	root := &cobra.Command{
		Use: name, Short: p.Short, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true, Version: daemon.Version(),
		Long: p.Short + `.

` + name + ` is a discovery handler: it serves gRPC at NAME.sock in the directory of edgediscovery, registers there, again whenever
edgediscovery was restarted, and looks for what Configurations ask for. It is needed where edgediscovery was built without the
handler, or can't look from where it runs, such as another network namespace or host.`,
		Example: fmt.Sprintf(`  %[1]s                                            # at %[2]s
  %[1]s --name %[3]s-hall                      # for Configurations whose handler is %[3]s-hall
  %[1]s --listen 10.0.0.5:7500 --server 10.0.0.2:7400 --tls-cert h.crt --tls-key h.key --tls-ca ca.crt   # from another host`, name, configs.HandlersDir, p.Name),
		RunE: func(*cobra.Command, []string) error {
			if !slices.Contains([]string{"trace", "debug", "info", "warn", "error", "off"}, log.Level) {
				return fmt.Errorf("--log-level %q: must be trace, debug, info, warn, error or off", log.Level)
			}
			code = daemon.Run(name, configs.Logger(stderr, log), func(ctx context.Context, program daemon.Program) error {
				o.Env.Log, o.Ready = program.Log, program.Ready
				return Serve(ctx, p, o)
			})
			return nil
		},
	}
	f := root.Flags()
	f.SortFlags = false
	f.StringVar(&o.Dir, "dir", o.Dir, "directory of edgediscovery's socket, which the handler's goes to as well; also DISCOVERY_HANDLERS_DIRECTORY")
	f.StringVar(&p.Name, "name", p.Name, "what Configurations ask for in spec.discoveryHandler.name")
	f.BoolVar(&p.Shared, "shared", p.Shared, "several nodes may see the same device")
	f.StringVar(&o.Listen, "listen", "", "serve at this TCP address, host:port, and not at a socket")
	f.StringVar(&o.Advertise, "advertise", "", "the address at which edgediscovery reaches the handler, if it is not that of --listen")
	f.StringVar(&o.Server, "server", "", "TCP address of edgediscovery (its tcp.listen), if it is not at its socket")
	f.StringVar(&o.TLS.Cert, "tls-cert", "", "certificate to show over TCP, in PEM")
	f.StringVar(&o.TLS.Key, "tls-key", "", "its key")
	f.StringVar(&o.TLS.CA, "tls-ca", "", "certificates of the authorities that signed edgediscovery's")
	f.StringSliceVar(&o.Env.Broker, "broker", nil, "addresses of the node's broker, for a handler that finds devices there, such as unix:///run/edgebus/mqtt.sock")
	f.StringVar(&o.Env.Sys, "sys", "", "directory that stands for /sys")
	f.StringVar(&o.Env.Dev, "dev", "", "directory that stands for /dev")
	f.StringVar(&log.Level, "log-level", log.Level, "trace, debug, info, warn, error or off")
	f.StringVar(&log.Format, "log-format", log.Format, "pretty, json, or auto: pretty on a terminal")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.Execute(); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 2
	}
	return code
}
