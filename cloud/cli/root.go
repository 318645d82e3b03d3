// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/cloud/cli/demo"
	"github.com/edgebus/edgebus/cloud/cli/devices"
	"github.com/edgebus/edgebus/cloud/cli/doctor"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/hub"
	"github.com/edgebus/edgebus/cloud/cli/newmapper"
	"github.com/edgebus/edgebus/cloud/cli/nodes"
	"github.com/edgebus/edgebus/cloud/cli/objects"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
)

// Run runs a command line, and returns its exit code.
func Run(args []string, stdout, stderr io.Writer) int {
	if daemon.PrintVersion("edgebus", args, stdout) {
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	root := NewCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	begun := false // an error before it is one of the command line
	root.PersistentPreRun = func(*cobra.Command, []string) { begun = true }
	if text := unknownBelow(root, args); text != "" {
		fmt.Fprintf(stderr, "edgebus: %s\n", text)
		return exitcode.Misused
	}
	cmd, err := root.ExecuteContextC(ctx)
	if errors.As(err, new(exitcode.Code)) {
		return exitcode.Of(err)
	}
	switch {
	case err == nil:
		return 0
	case !begun, cmd.ValidateRequiredFlags() != nil: // cobra checks them after that
		advice := cmd.CommandPath() + " --help says more"
		if len(args) > 0 && args[0] == "set" {
			advice = "did you mean: edgebus twin " + terminal.Printable(strings.Join(args, " "), 200)
		}
		fmt.Fprintf(stderr, "edgebus: %s\n%s\n", usageError(cmd, err), advice)
		return exitcode.Misused
	}
	fmt.Fprintln(stderr, terminal.ColoursOf(stderr).Paint(terminal.Red, "edgebus:"), err)
	return exitcode.Of(err)
}

// unknownBelow returns an error text if a command that only has subcommands was given something else.
func unknownBelow(root *cobra.Command, args []string) string {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd == root || cmd.Runnable() || len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
		return ""
	}
	var known []string
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() {
			known = append(known, below.Name())
		}
	}
	return fmt.Sprintf("%s has no command %q; it has %s", cmd.CommandPath(), terminal.Printable(rest[0], 100), strings.Join(known, ", "))
}

// usageError says what is wrong with a command line. For arguments that a command doesn't take it shows those that it does.
func usageError(cmd *cobra.Command, err error) string {
	if own := (exitcode.CodedError{}); !errors.As(err, &own) && cmd.HasParent() && cmd.ValidateArgs(cmd.Flags().Args()) != nil {
		return "these are not the arguments that it takes: " + cmd.UseLine()
	}
	return err.Error()
}

// NewCommand is edgebus with all of its commands.
func NewCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "edgebus",
		Short: "Use, inspect and try out an Edgebus message bus",
		Long: `edgebus is a client of a hub: it shows, applies, watches and deletes objects, shows and sets devices'
values, and says what is wrong with a node. Without a context (edgebus context --help) it is the hub of this machine.

` + exitcode.Help + `
On a terminal it writes in colour, unless NO_COLOR is set.`,
		Example: `  edgebus demo                                  # all of it on this machine
  edgebus get devices                           # list devices
  edgebus apply -f lamp.yaml                    # create or change objects
  edgebus twin set lamp power=ON --wait         # set a desired value, and wait for the device
  edgebus watch devices                         # show changes
  edgebus doctor n1                             # say what is wrong with a node`,
		Version:       daemon.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	const toBegin = "To begin with:"
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Objects:", objects.Commands()},
		{"Devices and messages:", devices.Commands()},
		{"Nodes:", append(nodes.Commands(), doctor.New())},
		{"Hubs:", hub.Commands()},
		{toBegin, []*cobra.Command{demo.New(), newmapper.New(), newVersion()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			if cmd.Name() == "check" {
				cmd.AddCommand(objects.NewCheckUNS())
			}
			root.AddCommand(cmd)
		}
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exitcode.Errorf(exitcode.Misused, "%w", err) })
	root.SetHelpCommandGroupID(toBegin)
	root.SetCompletionCommandGroupID(toBegin)
	return root
}

// licenseList has a line for each module that any of the programs is linked with: its path and its licences. scripts/release writes it.
//
//go:embed licenses.txt
var licenseList string

func newVersion() *cobra.Command {
	var licenses bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, or the licences of what is linked",
		Long: `Print the version. With --licenses print the modules that the programs of Edgebus are linked with, and their licences as SPDX
names them; "std" is Go's own library. The texts are in the file NOTICE that comes with the programs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !licenses {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "edgebus %s %s %s/%s\n", daemon.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprint(w, "MODULE\tLICENCE\ngithub.com/edgebus/edgebus\tApache-2.0\n", licenseList)
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&licenses, "licenses", false, "print what is linked, and its licences")
	return cmd
}
