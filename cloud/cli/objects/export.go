// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// exportOptions are the flags of edgebus export.
type exportOptions struct {
	access.Hub
	labels string
	dir    string
	errs   io.Writer
}

func newExport() *cobra.Command {
	o := &exportOptions{}
	cmd := &cobra.Command{
		Use:   "export [KIND…]",
		Short: "Write all objects as manifests",
		Long: `Write the hub's objects as manifests: all kinds of all namespaces, or those that are named.
edgebus apply makes an empty hub the same as this one from them, and they can be kept in git.

What the hub makes is left out: status, versions, identities, events, objects that others own (such as a
Fleet's TemplateVersions, which their owners create again), and objects that are being deleted. So
are messages, sessions, and what nodes reported; edgebus backup has all of that. Secrets are in
the manifests in clear, and other objects may have passwords, too: keep them safe. Only you
can read the files that --directory writes. Kinds that you may not read are left out with a message, unless you named them.

An annotation says what was applied last, as kubectl keeps it. So a hub that is restored from an export knows
which values came from manifests and which were set otherwise, and applying your own manifests has the same effect
there. kubectl apply of an export takes all of its values as the manifest's.

` + exitcode.Help,
		Example: `  edgebus export > monday.yaml
  edgebus export -d plant && edgebus apply -R -f plant --context other
  edgebus export devices -n hall -l floor=2`,
		ValidArgsFunction: completeObjects(&o.Hub, 1),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.Register(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.labels, "selector", "l", "", "only objects with these labels")
	f.StringVarP(&o.dir, "directory", "d", "", "write a file for each object into this directory, which is new or empty")
	_ = cmd.MarkFlagDirname("directory")
	return cmd
}

func (o *exportOptions) run(cmd *cobra.Command, args []string) error {
	o.errs = cmd.ErrOrStderr()
	kinds, err := o.exportedKinds(cmd.Context(), args)
	if err != nil {
		return err
	}
	write := func(_ client.Kind, _ client.Object, text string) error {
		_, err := io.WriteString(cmd.OutOrStdout(), "---\n"+text)
		return err
	}
	if o.dir != "" {
		if err := emptyDirectory(o.dir); err != nil {
			return err
		}
		write = o.writeFile
	}
	total := 0
	for _, k := range kinds {
		n, err := o.exportKind(cmd.Context(), k, write)
		if len(args) == 0 && n == 0 && errors.Is(err, resource.Forbidden) {
			fmt.Fprintf(o.errs, "edgebus: %s are left out: %s\n", k.Plural, terminal.Printable(err.Error(), 500))
			continue
		}
		if err != nil {
			return err
		}
		total += n
	}
	if o.dir != "" {
		fmt.Fprintf(cmd.OutOrStdout(), "%s written to %s\n", printer.Plural(total, "object"), o.dir)
	}
	return nil
}

// exportedKinds are the kinds that are meant, in the order in which they can be applied.
func (o *exportOptions) exportedKinds(ctx context.Context, args []string) (kinds []client.Kind, err error) {
	for i, name := range args {
		k, err := o.Kind(ctx, name)
		if errors.Is(err, resource.NotFound) && (i > 0 || strings.Contains(name, "/")) { // it is an object's
			err = exitcode.Errorf(exitcode.Misused, "%q is no kind: export takes kinds, such as devices, and -l for some of their objects; edgebus get KIND/NAME -o yaml writes one", name)
		}
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, k)
	}
	if len(args) == 0 {
		all, err := o.Kinds(ctx)
		if err != nil {
			return nil, err
		}
		for _, k := range client.Canonical(all) {
			if k.Can("list") && k.Can("create") && k.Name != "Event" {
				kinds = append(kinds, k)
			}
		}
	}
	slices.SortStableFunc(kinds, func(a, b client.Kind) int { return cmp.Compare(applyRanks[a.Name], applyRanks[b.Name]) })
	return kinds, nil
}

// exportKind writes all objects of a kind.
func (o *exportOptions) exportKind(ctx context.Context, k client.Kind, write func(client.Kind, client.Object, string) error) (n int, err error) {
	which := client.ListOptions{Labels: o.labels}
	if o.NamespaceGiven {
		which.Namespace = o.NamespaceOf(k)
	}
	_, err = o.List(ctx, k, which, func(page []client.Object) error {
		for _, got := range page {
			if got.Metadata.DeletionTimestamp != nil {
				fmt.Fprintf(o.errs, "edgebus: %s is being deleted, and left out\n", printer.Label(k, got.Metadata.Name))
				continue
			}
			if isOwned(got.Metadata) && k.Name != resource.KindNode { // a Node exists without its Fleet
				continue
			}
			text, err := exportText(got)
			if err == nil {
				err = write(k, got, text)
			}
			if err != nil {
				return err
			}
			n++
		}
		return nil
	})
	return n, err
}

// isOwned is whether another object has created this one, and would create it again.
func isOwned(m resource.Meta) bool {
	return m.Owner != "" || len(m.OwnerReferences) > 0
}

// exportText is an object as a manifest for any hub.
func exportText(o client.Object) (string, error) {
	tree, err := o.Manifest()
	if err != nil {
		return "", err
	}
	delete(tree, "status")
	if meta, ok := tree["metadata"].(map[string]any); ok {
		delete(meta, "resourceVersion")
		delete(meta, "generateName")
		delete(meta, "owner") // its owner sets it again
		delete(meta, "ownerReferences")
		notes, _ := meta["annotations"].(map[string]any)
		if notes == nil {
			notes = map[string]any{}
			meta["annotations"] = notes
		}
		notes[client.LastApplied] = o.Metadata.Annotations[client.LastApplied] // empty where nothing was applied
	}
	tree["apiVersion"], tree["kind"] = o.APIVersion, o.Kind
	return printer.YAML(tree)
}

// emptyDirectory creates a directory, or checks that it is empty.
func emptyDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = exitcode.Errorf(exitcode.Misused, "%s is not empty: its files would mix with the exported ones", dir)
	}
	return err
}

// writeFile writes an object into the file KIND/NAMESPACE/NAME.yaml.
func (o *exportOptions) writeFile(k client.Kind, got client.Object, text string) error {
	file := filepath.Join(o.dir, k.Plural, got.Metadata.Namespace, got.Metadata.Name+".yaml")
	if name := got.Metadata.Name + ".yaml"; name != filepath.Base(name) || !filepath.IsLocal(filepath.Join(k.Plural, got.Metadata.Namespace, name)) {
		return fmt.Errorf("%q can't be a file's name", got.Metadata.Name)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o600) // some have credentials: Secrets, Repositories, Devices
}
