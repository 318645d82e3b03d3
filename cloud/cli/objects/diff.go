// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/client"
)

// The exit codes of edgebus diff.
const (
	diffFound  = 1
	diffFailed = 2
)

// diffOptions are the flags of edgebus diff.
type diffOptions struct {
	access.Hub
	files     []string
	recursive bool
}

func newDiff() *cobra.Command {
	o := &diffOptions{}
	cmd := &cobra.Command{
		Use:   "diff -f FILE|DIRECTORY|-",
		Short: "Show what apply would change",
		Long: `Show the difference between the objects of the hub and what they would be if manifests were applied. The
hub checks them as it does when they are applied, and changes nothing.

The difference is that of diff -u -N. KUBECTL_EXTERNAL_DIFF names another program, with its flags. Values of
Secrets are not shown.

Exit codes: 0 there is no difference; 1 there is one; 2 or more: it can't be found out.`,
		Example: `  edgebus diff -f lamp.yaml
  edgebus diff -R -f plant/ && echo "nothing to apply"
  KUBECTL_EXTERNAL_DIFF='diff -y --color' edgebus diff -f lamp.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.run(cmd)
			if err != nil && exitcode.Of(err) == diffFound && !errors.As(err, new(exitcode.Code)) {
				return exitcode.Errorf(diffFailed, "%w", err)
			}
			return err
		},
	}
	o.Register(cmd)
	cmd.Flags().StringArrayVarP(&o.files, "filename", "f", nil, "file or directory with manifests, - for standard input; may be given several times")
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "R", false, "include subdirectories")
	return cmd
}

func (o *diffOptions) run(cmd *cobra.Command) error {
	if len(o.files) == 0 {
		return exitcode.Errorf(exitcode.Misused, "nothing says what to compare: -f FILE, -f DIRECTORY, or -f - for standard input")
	}
	manifests, err := readManifests(o.files, o.recursive, cmd.InOrStdin())
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "edgebus-diff-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, side := range []string{"LIVE", "MERGED"} {
		if err := os.Mkdir(filepath.Join(dir, side), 0o700); err != nil {
			return err
		}
	}
	for _, group := range groupByRank(manifests, false) {
		for _, m := range group {
			if err := o.write(cmd.Context(), dir, m); err != nil {
				return fmt.Errorf("%s: %w", m, err)
			}
		}
	}
	return runDiff(cmd, dir)
}

// write writes what an object is and what it would be.
func (o *diffOptions) write(ctx context.Context, dir string, m manifest) error {
	if m.err != nil {
		return m.err
	}
	k, err := o.KindOf(ctx, m.object.TypeMeta)
	if err != nil {
		return err
	}
	namespace, err := manifestNamespace(&o.Hub, k, m.object)
	if err != nil {
		return err
	}
	change, err := o.Apply(ctx, k, namespace, m.object, client.WriteOptions{DryRun: true, Strict: true})
	if err != nil {
		return err
	}
	before, err1 := desiredTree(change.Before)
	after, err2 := desiredTree(change.After)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if k.Name == "Secret" {
		maskSecrets(before, after)
	}
	name := strings.Join([]string{k.Qualified(), namespace, m.object.Metadata.Name}, ".")
	for side, tree := range map[string]map[string]any{"LIVE": before, "MERGED": after} {
		if tree == nil {
			continue
		}
		text, err := printer.YAML(tree)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, side, name), []byte(text), 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// desiredTree is an object without what diffFound anyway: what the hub keeps, and the status.
func desiredTree(o client.Object) (map[string]any, error) {
	if len(o.JSON) == 0 {
		return nil, nil //nolint:nilnil // there is no such object
	}
	tree, err := o.Manifest()
	if err != nil {
		return nil, err
	}
	if meta, ok := tree["metadata"].(map[string]any); ok {
		delete(meta, "resourceVersion")
	}
	if isOwnKind(o) {
		delete(tree, "status")
	}
	return tree, nil
}

// maskSecrets replaces the values of two versions of a Secret, so that one sees only whether they differ.
func maskSecrets(before, after map[string]any) {
	for _, field := range []string{"data", "stringData"} {
		old, _ := before[field].(map[string]any)
		now, _ := after[field].(map[string]any)
		for key, value := range now {
			was, there := old[key]
			now[key] = "***"
			if there && was != value {
				now[key] = "*** (after)"
			}
			if there && was != value {
				old[key] = "*** (before)"
			}
		}
		for key, value := range old {
			if text, _ := value.(string); !strings.HasPrefix(text, "*** (") {
				old[key] = "***"
			}
		}
	}
}

// runDiff runs the program that shows the differences.
func runDiff(cmd *cobra.Command, dir string) error {
	line := strings.Fields(os.Getenv("KUBECTL_EXTERNAL_DIFF"))
	if len(line) == 0 {
		line = []string{"diff", "-u", "-N"}
	}
	run := exec.CommandContext(cmd.Context(), line[0], append(line[1:], "LIVE", "MERGED")...) //nolint:gosec // G204: the user's own program
	run.Dir, run.Stdout, run.Stderr = dir, cmd.OutOrStdout(), cmd.ErrOrStderr()
	err := run.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended) && ended.ExitCode() == diffFound:
		return exitcode.Code(diffFound)
	case errors.As(err, &ended):
		return exitcode.Errorf(max(diffFailed, ended.ExitCode()), "%s: %w", line[0], err)
	case errors.Is(err, exec.ErrNotFound):
		return exitcode.Errorf(diffFailed, "there is no program %s here, which shows the differences: install it (diffutils), or name another one in KUBECTL_EXTERNAL_DIFF", line[0])
	}
	return err
}
