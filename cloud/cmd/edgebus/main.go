// Command edgebus is for people: it shows a node's tree, says what is wrong
// with its link, and runs a demonstration of the whole bus on one machine.
//
// It never does what a broker or the API could not be asked by other means: it is
// a client of both, and links neither hub nor core.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/configs"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program, with its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if code := exitCode(0); errors.As(err, &code) {
		return int(code)
	}
	if err != nil {
		fmt.Fprintln(stderr, "edgebus:", err)
		return 1
	}
	return 0
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "edgebus",
		Short:         "Look into an Edgebus, or try one out",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newDemo(), newTree(), newDoctor(), newCheck(), newBackup(), newRestore(), newVersion())
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "edgebus %s %s %s/%s\n", configs.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}
