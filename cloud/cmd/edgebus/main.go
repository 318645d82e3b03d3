package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/topics/resource"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run runs a command line, and returns its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	begun := false // an error before it is one of the command line
	root.PersistentPreRun = func(*cobra.Command, []string) { begun = true }
	if text := unknownBelow(root, args); text != "" {
		fmt.Fprintf(stderr, "edgebus: %s\n", text)
		return misused
	}
	cmd, err := root.ExecuteContextC(ctx)
	if errors.As(err, new(exitCode)) {
		return exitCodeOf(err)
	}
	switch {
	case err == nil:
		return 0
	case !begun:
		advice := cmd.CommandPath() + " --help says more"
		if len(args) > 0 && args[0] == "set" {
			advice = "did you mean: edgebus twin " + printableText(strings.Join(args, " "), 200)
		}
		fmt.Fprintf(stderr, "edgebus: %s\n%s\n", misuse(cmd, err), advice)
		return misused
	}
	fmt.Fprintln(stderr, coloursOn(stderr).paint(colourRed, "edgebus:"), err)
	return exitCodeOf(err)
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
	return fmt.Sprintf("%s has no command %q; it has %s", cmd.CommandPath(), printableText(rest[0], 100), strings.Join(known, ", "))
}

// misuse says what is wrong with a command line. For arguments that a command doesn't take it shows those that it does.
func misuse(cmd *cobra.Command, err error) string {
	if own := (codedError{}); !errors.As(err, &own) && cmd.HasParent() && cmd.ValidateArgs(cmd.Flags().Args()) != nil {
		return "these are not the arguments that it takes: " + cmd.UseLine()
	}
	return err.Error()
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "edgebus",
		Short: "Use, inspect and try out an Edgebus message bus",
		Long: `edgebus is a client of a hub: it shows, applies, watches and deletes objects, shows and sets devices'
values, and says what is wrong with a node. Without a context (edgebus context --help) it is the hub of this machine.

` + exitCodes + `
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
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Objects:", []*cobra.Command{newGet(), newWatch(), newDescribe(), newApply(), newDelete(), newExport(), newKinds(), newBlob(), newArtifact()}},
		{"Devices and nodes:", []*cobra.Command{newTwin(), newCall(), newTree(), newDoctor(), newSession(), newRollout(), newUpgrade()}},
		{"Nodes that join and leave:", []*cobra.Command{newInvite(), newApprove(), newDeny(), newNode(), newMapperCommand(), newAuthority()}},
		{"Users:", []*cobra.Command{newLogin(), newToken(), newPasswd()}},
		{"Messages:", []*cobra.Command{newPub(), newSub()}},
		{"Data directories:", []*cobra.Command{newCheck(), newBackup(), newRestore()}},
		{"To begin with:", []*cobra.Command{newDemo(), newScaffold(), newContext(), newKubeconfig(), newVersion()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			root.AddCommand(cmd)
		}
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exitErrorf(misused, "%w", err) })
	root.SetHelpCommandGroupID("To begin with:")
	root.SetCompletionCommandGroupID("To begin with:")
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "edgebus %s %s %s/%s\n", daemon.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}

// Exit codes, which are part of the interface. doctor and check have their own: see their help.
const (
	failed      = 1 // anything else
	misused     = 2 // the command line can't be understood
	notFound    = 3 // no such object, or kind
	refused     = 4 // not valid, not allowed, or changed by another client first
	unreachable = 5 // no answer from the hub
	late        = 6 // the timeout expired
)

const exitCodes = `Exit codes: 0 done; 1 failed; 2 the command line can't be understood; 3 not found;
4 refused by the hub (not valid, not allowed, or changed by another client first);
5 the hub can't be reached; 6 the timeout expired first.`

// codedError is an error that knows its exit code.
type codedError struct {
	code int
	error
}

func (e codedError) Unwrap() error { return e.error }

func exitErrorf(code int, format string, args ...any) error {
	return codedError{code, fmt.Errorf(format, args...)}
}

// exitCodeOf is the one place where an error becomes an exit code.
func exitCodeOf(err error) int {
	if code := exitCode(0); errors.As(err, &code) {
		return int(code)
	}
	var coded codedError
	if errors.As(err, &coded) {
		return coded.code
	}
	if errors.As(err, new(*client.Refused)) { // MQTT
		return refused
	}
	switch resource.KindOf(err) {
	case resource.NotFound:
		return notFound
	case resource.Invalid, resource.AlreadyExists, resource.Conflict, resource.Unauthorized, resource.Forbidden,
		resource.TooLarge, resource.Quota:
		return refused
	case resource.Unavailable:
		return unreachable
	}
	return failed
}

// failureCount counts failures, and makes one exit code of them.
type failureCount struct {
	failures int
	code     int
}

// addFailure prints and counts a failure. The code of failures of several kinds is failed.
func (t *failureCount) addFailure(errs io.Writer, where string, err error) {
	fmt.Fprintf(errs, "edgebus: %s%v\n", where, err)
	code := exitCodeOf(err)
	if t.failures > 0 && t.code != code {
		code = failed
	}
	t.failures, t.code = t.failures+1, code
}

func (t *failureCount) err() error {
	if t.failures == 0 {
		return nil
	}
	return exitCode(t.code)
}

// interrupted reports whether the command was interrupted, and prints how many objects are left.
func interrupted(ctx context.Context, errs io.Writer, left int) bool {
	if ctx.Err() != nil && left > 0 {
		fmt.Fprintf(errs, "edgebus: not tried: %d more\n", left)
	}
	return ctx.Err() != nil
}
