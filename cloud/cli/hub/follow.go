// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/program"
)

func newFollow() *cobra.Command {
	var a access.Flags
	var dir string
	var once, anew, status bool
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "follow --data-dir DIRECTORY",
		Short: "Keep a copy of a hub on this machine, to go on with if the hub is lost",
		Long: `Copies the hub's log to this machine while it is written, with revocations, certificates and blobs, until it is stopped. The user
needs the role follower. It connects again by itself; a copy that was too long away begins another one, and keeps the first until that
is whole.

Private keys aren't sent: copy secrets.key, and the keys in the directory authority, from the hub's data directory by hand, once and after each
rotation. Which are missing is logged, and said by --status.

edgebus takeover makes the copy fit to go on in the hub's place. cloudhub does the work of both, and has to be installed.
The exit code is 3 if trying again is of no use.`,
		Example: "  edgebus token create --user standby --role follower --ttl 365d > standby.token\n" +
			"  edgebus follow --context plant --token-file standby.token --data-dir /var/lib/edgebus/hub\n" +
			"  edgebus follow --status --within 30s --data-dir /var/lib/edgebus/hub",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			line := []string{"follow", "--data-dir", dir}
			if status {
				return runHub(cmd, nil, append(line, "--status", "--within", within.String())...)
			}
			p, err := a.Resolve()
			if err == nil {
				err = p.Validate()
			}
			if err != nil {
				return err
			}
			config, err := p.Kubeconfig("hub", true)
			if err != nil {
				return err
			}
			for flag, is := range map[string]bool{"--once": once, "--anew": anew} {
				if is {
					line = append(line, flag)
				}
			}
			return runHub(cmd, config, append(line, "--kubeconfig", "-")...)
		},
	}
	a.Register(cmd, "server", "")
	cmd.Flags().StringVar(&dir, "data-dir", "", "the directory of the copy")
	_ = cmd.MarkFlagRequired("data-dir")
	_ = cmd.MarkFlagDirname("data-dir")
	cmd.Flags().BoolVar(&once, "once", false, "end when the copy has all that the hub has")
	cmd.Flags().BoolVar(&anew, "anew", false, "begin another copy; the one that there is stays until that is whole")
	cmd.Flags().BoolVar(&status, "status", false, "print how old the copy is; the exit code is 1 if it can't be taken over or is older than --within")
	cmd.Flags().DurationVar(&within, "within", time.Minute, "of --status: how old the copy may be")
	return cmd
}

func newTakeover() *cobra.Command {
	return &cobra.Command{
		Use:   "takeover DIRECTORY",
		Short: "Go on with the copy of a hub that is lost",
		Long: `Makes the copy that edgebus follow keeps in DIRECTORY fit to go on in the place of the hub that it is of, as a restore does: the data
begins a new lineage, and versions and revisions go on far above all that were ever given. Then start cloudhub on it.

Make sure first that the other hub is stopped and stays so. What it acknowledged after the copy had it is lost, unless nodes and clients send
it again; how old the copy is is printed. Nothing is changed if a part of it is missing, such as a key.`,
		Example: "  systemctl stop edgebus-follow\n  edgebus takeover /var/lib/edgebus/hub\n  systemctl start cloudhub",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runHub(cmd, nil, "takeover", "--data-dir", args[0])
		},
	}
}

// runHub runs cloudhub.
func runHub(cmd *cobra.Command, input []byte, args ...string) error {
	path, err := program.Find("", hubProgram)
	if err != nil {
		return fmt.Errorf("%s is neither beside edgebus nor in PATH: it does the work", hubProgram)
	}
	child := exec.Command(path, args...) //nolint:gosec // G204: the program of this project
	child.Stdin, child.Stdout, child.Stderr = bytes.NewReader(input), cmd.OutOrStdout(), cmd.ErrOrStderr()
	asked := make(chan os.Signal, 1) // handed on: it stops in order
	signal.Notify(asked, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(asked)
	if err := child.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	for {
		select {
		case s := <-asked:
			_ = child.Process.Signal(s)
		case err := <-ended:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return exitcode.Code(exit.ExitCode()) // it has printed why
			}
			return err
		}
	}
}
