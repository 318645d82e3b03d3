package main

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/topics"
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
				return exitCode(3)
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
	program, err := findProgram("", name)
	if err != nil {
		return fmt.Errorf("this is data of %s, which is neither beside edgebus nor in PATH", name)
	}
	child := exec.CommandContext(cmd.Context(), program, args...) //nolint:gosec // G204: the plugin that the user named
	child.Stdout, child.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	err = child.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exitCode(exit.ExitCode()) // it has printed why
	}
	return err
}

// findProgram looks for a program in dir, or, if that is empty, beside this one and then in PATH.
func findProgram(dir, name string) (string, error) {
	if dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", err
		}
		return exec.LookPath(filepath.Join(dir, name))
	}
	if self, err := os.Executable(); err == nil {
		if target, err := filepath.EvalSymlinks(self); err == nil {
			self = target
		}
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
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
			secret, err := newPassword(cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), password.NewHash(secret))
			return err
		},
	}
}

// newPassword reads a password: from a terminal twice, without echo.
func newPassword(in io.Reader, prompts io.Writer) (secret []byte, err error) {
	file, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		secret = []byte(strings.TrimRight(line, "\r\n"))
	} else {
		var twice [2][]byte
		for i, prompt := range []string{"Password: ", "Once more: "} {
			fmt.Fprint(prompts, prompt)
			twice[i], err = term.ReadPassword(int(file.Fd()))
			fmt.Fprintln(prompts)
			if err != nil {
				return nil, err
			}
		}
		if string(twice[0]) != string(twice[1]) {
			return nil, exitErrorf(misused, "the two passwords are not the same")
		}
		secret = twice[0]
	}
	if len(secret) == 0 {
		return nil, exitErrorf(misused, "no password was given: type one, or write it to standard input")
	}
	return secret, nil
}

//go:embed newmapper
var mapperFiles embed.FS

// mapperScaffold holds the values for the templates of a new mapper.
type mapperScaffold struct {
	Name, Program, Module, Go string
	Version                   string // of this module that is required; empty: go mod tidy finds the latest
	Source                    string // the directory that stands in its place; empty: none
}

func newScaffold() *cobra.Command {
	var module, dir, source string
	cmd := &cobra.Command{
		Use:   "new-mapper NAME",
		Short: "Write a new mapper in Go, to be completed",
		Long: `Write a Go module with a mapper for devices of the protocol NAME: a program with flags,
configuration and TLS, a driver for a simple protocol, which you replace by your own, and
its test. It builds and its test passes as it is. docs/mappers.md says how to go on.`,
		Example: "  edgebus new-mapper knx\n  cd mapper-knx && go mod tidy && go test ./... && go build",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m := mapperScaffold{Name: args[0], Program: "mapper-" + args[0], Module: module, Go: "1.26", Source: source}
			if !topics.ValidName(m.Name) || strings.Contains(m.Name, ".") {
				return exitErrorf(misused, "%q is no name of a mapper: it has letters a–z, digits and '-' in between", m.Name)
			}
			if m.Module == "" {
				m.Module = m.Program
			}
			if dir == "" {
				dir = m.Program
			}
			if v := daemon.Version(); strings.HasPrefix(v, "v") && source == "" {
				m.Version = v
			}
			if source != "" {
				m.Version = "v0.0.0"
				var err error
				if m.Source, err = filepath.Abs(source); err != nil {
					return err
				}
			}
			return m.write(dir, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&module, "module", "", "path of the Go module (default mapper-NAME)")
	cmd.Flags().StringVar(&dir, "dir", "", "directory to write it to, which must not exist (default mapper-NAME)")
	cmd.Flags().StringVar(&source, "edgebus", "", "directory of Edgebus' source to build it with, instead of a published version")
	return cmd
}

// write makes the directory and the files in it.
func (m mapperScaffold) write(dir string, out io.Writer) error {
	if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) { //nolint:gosec // G301: source code
		return exitErrorf(misused, "%s exists: choose another directory with --dir", dir)
	} else if err != nil {
		return err
	}
	templates, err := template.ParseFS(mapperFiles, "newmapper/*.tmpl")
	if err != nil {
		return err
	}
	for _, t := range templates.Templates() {
		var text bytes.Buffer
		if err := t.Execute(&text, m); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, strings.TrimSuffix(t.Name(), ".tmpl")), text.Bytes(), 0o644); err != nil { //nolint:gosec // G306: source code
			return err
		}
	}
	if m.Source != "" { // the same versions that edgebus was built with
		sums, err := os.ReadFile(filepath.Join(m.Source, "go.sum"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644) //nolint:gosec // G306: source code
		}
		if err != nil {
			return fmt.Errorf("--edgebus: %w", err)
		}
	}
	_, err = fmt.Fprintf(out, "%s is written: cd %[1]s && go mod tidy && go test ./... && go build\n", dir)
	return err
}
