// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// editOptions are the flags of edgebus edit.
type editOptions struct {
	access.Hub
	objectSelection
	output string
}

func newEdit() *cobra.Command {
	o := &editOptions{}
	cmd := &cobra.Command{
		Use:   "edit KIND NAME… | -f FILE",
		Short: "Change objects in an editor",
		Long: `Open each object in the editor that KUBE_EDITOR or EDITOR names (vi if neither does), and store what was
changed in it. What the hub keeps by itself (status, uid, …) isn't shown.

If the hub refuses the change, or another client has changed the same fields meanwhile, the editor opens again
with the reason on top. A file that is empty, or saved without a change, ends it. What couldn't be stored is kept
in a file, whose name is printed.

` + exitcode.Help,
		Example: `  edgebus edit device lamp
  EDITOR='code --wait' edgebus edit node/n1
  edgebus edit fleet sites -o json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeObjects(&o.Hub, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := o.refs(cmd.Context(), &o.Hub, args, cmd.InOrStdin())
			if err != nil {
				return err
			}
			for _, ref := range all {
				if err := o.edit(cmd, ref); err != nil {
					return err
				}
			}
			return nil
		},
	}
	o.Register(cmd)
	o.registerFiles(cmd)
	printer.OutputFlag(cmd, &o.output, "the form in which they are edited", "yaml", "json")
	return cmd
}

// isOwnKind reports whether an object is of one of the hub's own kinds, whose status nobody else writes.
func isOwnKind(o client.Object) bool { return o.APIVersion == resource.APIVersion }

// editedText is an object as it is shown in the editor. What isn't shown is taken from the object, so that it doesn't count as removed.
func (o *editOptions) editedText(got *client.Object) (string, error) {
	tree, err := desiredTree(*got)
	if err != nil {
		return "", err
	}
	if got.JSON, err = json.Marshal(tree); err != nil {
		return "", err
	}
	var text bytes.Buffer
	err = printer.Document(&text, o.output, tree)
	return text.String(), err
}

const editHeading = `# Please edit the object below. Lines that begin with a '#' are ignored, and an empty file changes nothing.
# If the hub refuses the change, this file is opened again with the reason.
#
`

// edit has one object edited until the hub takes it, or nothing more is changed.
func (o *editOptions) edit(cmd *cobra.Command, ref objectRef) error {
	got, err := o.Object(cmd.Context(), ref.kind, ref.namespace, ref.name)
	if err != nil {
		return err
	}
	shown, err := o.editedText(&got)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp("", "edgebus-edit-*."+o.output)
	if err != nil {
		return err
	}
	path := file.Name()
	if err := file.Close(); err != nil {
		return err
	}
	label := printer.Label(ref.kind, ref.name)
	var refused error
	for {
		text, err := editFile(cmd, path, editHeading+commentOn(refused)+shown)
		saved := withoutComments(text)
		switch unchanged := saved == withoutComments(shown) || strings.TrimSpace(saved) == ""; {
		case err != nil:
			return errors.Join(err, os.Remove(path))
		case unchanged && refused == nil:
			fmt.Fprintf(cmd.ErrOrStderr(), "Edit cancelled, no changes made to %s.\n", label)
			return os.Remove(path)
		case unchanged:
			return exitcode.Errorf(exitcode.Of(refused), "%s is not changed: %w\nA copy of your changes is in %s: mend it, and edgebus apply -f %[3]s", label, refused, path)
		}
		outcome, err := o.store(cmd.Context(), ref, got, saved)
		switch {
		case err == nil:
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", label, outcome)
			return os.Remove(path)
		case exitcode.Of(err) != exitcode.Refused:
			return fmt.Errorf("%w\nA copy of your changes is in %s: edgebus apply -f %[2]s", err, path)
		}
		shown, refused = saved, err
	}
}

// store has the hub store what was edited.
func (o *editOptions) store(ctx context.Context, ref objectRef, got client.Object, text string) (string, error) {
	documents := client.Documents([]byte(text))
	if len(documents) != 1 || documents[0].Err == nil && len(documents[0].Objects) != 1 {
		return "", resource.Errorf(resource.Invalid, "", "the file has to hold one object")
	}
	if err := documents[0].Err; err != nil {
		return "", err
	}
	change, err := o.Edit(ctx, ref.kind, got, documents[0].Objects[0], client.WriteOptions{Strict: true})
	if err == nil && change.Outcome == client.Configured {
		return "edited", nil
	}
	return "unchanged", err
}

// commentOn is why a change was refused, as lines of comment.
func commentOn(refused error) string {
	if refused == nil {
		return ""
	}
	var b strings.Builder
	for line := range strings.Lines("It was not stored: " + refused.Error()) {
		b.WriteString("# " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String() + "#\n"
}

func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// editFile writes a file, has the user's editor change it, and returns what it holds then.
func editFile(cmd *cobra.Command, path, text string) (string, error) {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", err
	}
	editor := cmp.Or(os.Getenv("KUBE_EDITOR"), os.Getenv("EDITOR"), "vi")
	run := exec.Command("sh", "-c", editor+` "$1"`, "edgebus", path) //nolint:gosec // G204: the user's own editor, which may have arguments
	run.Stdin, run.Stdout, run.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if err := run.Run(); err != nil {
		return "", fmt.Errorf("the editor %q failed: %w; KUBE_EDITOR or EDITOR names another one", editor, err)
	}
	changed, err := os.ReadFile(path)
	return string(changed), err
}
