// SPDX-License-Identifier: Apache-2.0

// Package cmd makes a program of a driver: flags, a configuration file and environment variables, TLS, --check-config,
// --print-config, version, and running the driver until the program is told to stop. It knows no protocol. A whole mapper is
//
//	type settings struct {
//		Timeout time.Duration `yaml:"timeout"`
//	}
//
//	func main() {
//		os.Exit(cmd.Program[settings]{
//			Name:     "mapper-knx",
//			Short:    "The mapper for KNX devices",
//			Settings: "# How long a device may take to answer.\ntimeout: 2s\n",
//			Driver: func(s settings, _ *mappers.Options) (mappers.Driver, error) {
//				return &driver{timeout: s.Timeout}, nil
//			},
//		}.Main(os.Args[1:], os.Stdout, os.Stderr))
//	}
//
// docs/mappers.md shows how the driver is written, and edgebus new-mapper writes all of it to begin with.
package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
)

// Program is a mapper program; D are the settings of its driver: a struct whose fields have the tag yaml and are of the types
// string, bool, int, float64 and time.Duration. A D with a method Check(report func(key, format string, args ...any)) is
// asked which of them are wrong.
type Program[D any] struct {
	Name, Short, Long, Example string // Name begins with mapper-, and is what /etc/edgebus/NAME.yaml and --help say
	// Settings are the settings of D as YAML, with a comment and the default for each: what --help, --print-config and
	// the configuration file know. The programs in this repository have theirs in configs.
	Settings string
	// Table are the settings of the protocol's devices, which --help lists.
	Table mappers.ProtocolSettings
	// Driver makes the driver and may change the options that follow from its settings.
	Driver func(settings D, o *mappers.Options) (mappers.Driver, error)
	// Run is instead of Driver, for a program that has several.
	Run func(ctx context.Context, settings D, o mappers.Options) error
	// Commands are what the program can do besides.
	Commands []*cobra.Command
}

// Main runs the program and returns its exit code: 0, 1 when it failed, 2 when it was told something impossible.
func (p Program[D]) Main(args []string, stdout, stderr io.Writer) int {
	if daemon.PrintVersion(p.Name, configs.NormalizeArgs(args), stdout) {
		return 0
	}
	code := 0
	root := p.root(&code, stdout, stderr)
	root.SetArgs(configs.NormalizeArgs(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.Execute(); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
		if errors.As(err, new(*runFailure)) {
			return 1
		}
		return 2
	}
	return code
}

// runFailure marks the error of a command that was understood and went wrong.
type runFailure struct{ error }

func (f *runFailure) Unwrap() error { return f.error }

// Failed marks err as having happened while running: the exit code is 1 then, not 2.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	return &runFailure{err}
}

func (p Program[D]) root(code *int, stdout, stderr io.Writer) *cobra.Command {
	var driveLog string
	if p.Settings != "" || !configs.HasPage(p.Name) {
		configs.AddMapper(p.Name, p.Settings)
	}
	root := &cobra.Command{
		Use: p.Name, Short: p.Short, Long: strings.TrimSpace(p.Long + settingsHelp(p.Table)), Example: p.Example,
		Version: daemon.Version(), Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, done, err := configs.LoadFlags[configs.Mapper[D]](p.Name, c.Flags(), stdout)
			if err != nil || done {
				return err
			}
			*code = daemon.Run(p.Name, configs.Logger(stderr, cfg.Log), func(ctx context.Context, program daemon.Program) error {
				return p.run(ctx, cfg, program, driveLog)
			})
			return nil
		},
	}
	root.Flags().SortFlags = false
	if err := configs.AddFlags[configs.Mapper[D]](p.Name, root.Flags()); err != nil {
		root.RunE = func(*cobra.Command, []string) error { return err }
	}
	root.Flags().StringVar(&driveLog, "drive-log", "", "file that gets a line of JSON before each write and command to a device; for tests and audits")
	root.AddCommand(&cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(*cobra.Command, []string) { fmt.Fprintln(stdout, p.Name, daemon.Version()) },
	})
	root.AddCommand(p.newHealth())
	root.AddCommand(p.Commands...)
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}

// settingsHelp lists the settings of a protocol's devices.
func settingsHelp(table mappers.ProtocolSettings) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, place := range []struct{ name, title string }{
		{"device", "Settings of a Device, in spec.protocol.config"},
		{"property", "Settings of a property, in the config of its visitor"},
		{"event", "Settings of an event"},
		{"command", "Settings of a command"},
	} {
		list := table.SettingsFor(place.name)
		if len(list) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n\n%s:\n", place.title)
		for _, s := range list {
			fmt.Fprintf(w, "\n  %s\t%s", s.Name, s.Help)
			switch {
			case len(s.Enum) > 0 && len(s.Enum) < 8:
				fmt.Fprintf(w, ": %s", strings.Join(s.Enum, ", "))
			case s.Minimum != nil && s.Maximum != nil && *s.Minimum < *s.Maximum:
				fmt.Fprintf(w, ", %s to %s", strconv.FormatFloat(*s.Minimum, 'f', -1, 64), strconv.FormatFloat(*s.Maximum, 'f', -1, 64))
			}
			if s.Default != "" {
				fmt.Fprintf(w, " (default: %s)", s.Default)
			} else if s.Required {
				fmt.Fprint(w, "; required")
			}
		}
	}
	_ = w.Flush() // to memory
	return b.String()
}

// newHealth makes the command that asks whether the mapper runs.
func (p Program[D]) newHealth() *cobra.Command {
	health := &cobra.Command{
		Use: "health", Short: "Ask the node's broker whether this mapper, with these settings, is connected", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, done, err := configs.LoadFlags[configs.Mapper[D]](p.Name, c.Flags(), c.OutOrStdout())
			if err != nil || done {
				return err
			}
			o, err := optionsOf(cfg)
			if err != nil {
				return err
			}
			o.Log = zerolog.Nop()
			return Failed(mappers.CheckHealth(c.Context(), o))
		},
	}
	health.Flags().SortFlags = false
	if err := configs.AddFlags[configs.Mapper[D]](p.Name, health.Flags()); err != nil {
		health.RunE = func(*cobra.Command, []string) error { return err }
	}
	return health
}

// optionsOf are the options that follow from the settings of every mapper.
func optionsOf[D any](cfg configs.Mapper[D]) (mappers.Options, error) {
	tls, err := cfg.TLS.Config()
	if err != nil {
		return mappers.Options{}, err
	}
	_, err = cfg.Secret()
	return mappers.Options{Name: cfg.Name, Servers: []string{cfg.Server}, User: cfg.User, Secret: cfg.Secret, TLS: tls}, err
}

func (p Program[D]) run(ctx context.Context, cfg configs.Mapper[D], program daemon.Program, driveLog string) error {
	o, err := optionsOf(cfg)
	if err != nil {
		return err
	}
	o.DriveLog, o.Log = driveLog, program.Log
	if p.Run != nil {
		return p.Run(ctx, cfg.Driver, o)
	}
	driver, err := p.Driver(cfg.Driver, &o)
	if err != nil {
		return err
	}
	o.Traces, err = tracing.New(tracing.Options{
		Endpoint: cfg.Tracing.Endpoint, Ratio: cfg.Tracing.Ratio, Service: p.Name, Version: program.Version, Instance: cfg.Name, Log: program.Log,
	})
	if err != nil {
		return err
	}
	return daemon.RunGroup(ctx, o.Traces.Run, func(ctx context.Context) error { return mappers.Run(ctx, o, driver) })
}
