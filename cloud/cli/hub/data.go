// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/program"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/password"
)

func newCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check DIRECTORY|FILE",
		Short: "Check the data of a hub or core that is stopped, or a backup",
		Long: `Reads a data directory (/var/lib/edgebus/hub, /var/lib/edgebus/core) or a backup from end to
end: checksums, structure, counters. Says what is there, what is damaged, and what to do.
Changes nothing. The exit code is 0 if all is well, 1 if something is damaged, and 3 if it could not be
checked: the program runs, or the data can't be read.

The program whose data it is does the work (cloudhub or edgecore), and must be stopped.`,
		Example: "  edgebus check /var/lib/edgebus/core\n  edgebus check hub-monday.backup",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "edgebus check:", err)
				return exitcode.Code(3)
			}
			_ = f.Close() // only read
			return asOwner(cmd, args[0], "check", args[0])
		},
	}
}

func newBackup() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "backup DIRECTORY FILE",
		Short: "Back up the data of a hub or core, which may run",
		Long: `Writes all that is in the data directory of a hub or core into FILE: a tar file, compressed,
with a checksum of every file.

A program that runs is asked for it, on this machine, and goes on meanwhile: FILE has everything
that was acknowledged before, as it was at one moment. Of one that is stopped the data is
checked first. Only the data's owner, and root, can make a backup: FILE holds whatever the data
holds, such as values, the names of users, and Secrets with their key. Keep it as safe.

FILE gets its name when all of it is on disk and was read back; what a backup that was killed
leaves is called FILE.….part. The exit code is 0 if FILE is whole, and 1 if there is none.`,
		Example: "  edgebus backup /var/lib/edgebus/hub hub-monday.backup\n" +
			"  edgebus backup /var/lib/edgebus/core /mnt/backups/core-$(date +%F).backup",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			line := []string{"backup", "--data-dir", args[0], args[1]}
			if force {
				line = append(line, "--force")
			}
			return asOwner(cmd, args[0], line...)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE, and back up what is damaged, too")
	return cmd
}

func newRestore() *cobra.Command {
	var force, dryRun bool
	cmd := &cobra.Command{
		Use:   "restore FILE DIRECTORY",
		Short: "Put a backup back",
		Long: `Puts the data of a backup into an empty data directory, checks it, and makes it fit to go on:
what was written after the backup is known to others, so the data begins a new lineage, and
versions and revisions go on far above all that were ever given. Start the program then: each
side of the link sends the other what it lacks.

What was acknowledged after the backup and is known to nobody else is lost. Messages that were
queued in the backup, and delivered since, are delivered again.

What is in DIRECTORY is never written over: with --force it is moved aside, into a directory
in it that is named after the time. Restored files belong to whom DIRECTORY belongs to.`,
		Example: "  systemctl stop cloudhub\n  edgebus restore --force hub-monday.backup /var/lib/edgebus/hub\n" +
			"  systemctl start cloudhub",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			line := []string{"restore", "--data-dir", args[1], args[0]}
			if force {
				line = append(line, "--force")
			}
			if dryRun {
				line = append(line, "--dry-run")
			}
			return asOwner(cmd, args[0], line...)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "move aside what is in DIRECTORY")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check the backup and print what would be done")
	return cmd
}

// asOwner runs the program that the data belongs to: each knows its own format.
func asOwner(cmd *cobra.Command, path string, args ...string) error {
	name, err := backup.ProgramOf(path)
	if err != nil {
		return err
	}
	program, err := program.Find("", name)
	if err != nil {
		return fmt.Errorf("this is data of %s, which is neither beside edgebus nor in PATH", name)
	}
	child := exec.CommandContext(cmd.Context(), program, args...) //nolint:gosec // G204: the plugin that the user named
	child.Stdout, child.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	err = child.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exitcode.Code(exit.ExitCode()) // it has printed why
	}
	return err
}

func newPasswd() *cobra.Command {
	return &cobra.Command{
		Use:   "passwd",
		Short: "Make a password hash for auth.users",
		Long: `Ask for a password, and print its hash, which goes into auth.users of hub.yaml or core.yaml
as passwordHash. Without a terminal the password is the first line of standard input.
Hashes of mosquitto_passwd can be used as well.`,
		Example: "  edgebus passwd\n  pwgen 20 1 | tee ann.password | edgebus passwd",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			secret, err := terminal.ReadPassword(cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), password.NewHash(secret))
			return err
		},
	}
}
