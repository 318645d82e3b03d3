// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/views/uns"
	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// The exit codes of edgebus check uns, as those of edgebus check.
const (
	checkFound  = 1
	checkFailed = 3
)

// checkUNSOptions are the flags of edgebus check uns.
type checkUNSOptions struct {
	access.Hub
	files     []string
	recursive bool
	levels    uns.PathLevels
	output    string
}

// NewCheckUNS makes the command uns of edgebus check.
func NewCheckUNS() *cobra.Command {
	o := &checkUNSOptions{levels: uns.DefaultLevels()}
	cmd := &cobra.Command{
		Use:   "uns [-f FILE|DIRECTORY|-]",
		Short: "Say which Devices the unified namespace has no right place for",
		Long: `Says which Devices are outside of the levels of the unified namespace (views.uns), because neither they nor
their node have a label, and which have the same path, so that only the one made first is shown. It looks at the
Devices and Nodes of the hub, or at those in manifests, and changes nothing. Give it the levels of the setting.

Exit codes: 0 all is well; 1 something was found; 3 it can't be found out.`,
		Example: `  edgebus check uns
  edgebus check uns --levels site,area,line -R -f plant/`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, count, err := o.findings(cmd)
			if err != nil {
				return exitcode.Errorf(checkFailed, "%w", err)
			}
			if err := o.print(cmd, list, count); err != nil || len(list) == 0 {
				return err
			}
			return exitcode.Code(checkFound)
		},
	}
	o.Register(cmd)
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "file or directory with manifests, - for standard input; may be given several times")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "include subdirectories")
	f.StringVar(&o.levels.Root, "root", o.levels.Root, "the first level")
	f.StringSliceVar(&o.levels.Labels, "levels", o.levels.Labels, "the labels that the levels have the values of")
	f.StringVar(&o.levels.Name, "name", o.levels.Name, "the label that names a Device at the last level")
	printer.OutputFlag(cmd, &o.output, "form of the output", "table", "json")
	return cmd
}

func (o *checkUNSOptions) findings(cmd *cobra.Command) (list []uns.Finding, count int, err error) {
	var devices []resource.Device
	labels := map[string]map[string]string{}
	take := func(got client.Object) error {
		switch got.Kind {
		case resource.KindDevice:
			var d resource.Device
			err := got.Into(&d)
			devices = append(devices, d)
			return err
		case resource.KindNode:
			labels[got.Metadata.Name] = got.Metadata.Labels
		}
		return nil
	}
	if len(o.files) > 0 {
		err = o.fromFiles(cmd, take)
	} else {
		err = o.fromHub(cmd.Context(), take)
	}
	if err != nil {
		return nil, 0, err
	}
	return o.levels.Check(devices, func(node string) map[string]string { return labels[node] }), len(devices), nil
}

func (o *checkUNSOptions) fromFiles(cmd *cobra.Command, take func(client.Object) error) error {
	manifests, err := readManifests(o.files, o.recursive, cmd.InOrStdin())
	if err != nil {
		return err
	}
	for _, m := range manifests {
		if m.err == nil && strings.HasPrefix(m.object.APIVersion, resource.Group+"/") {
			m.err = take(m.object)
		}
		if m.err != nil {
			return fmt.Errorf("%s: %w", m, m.err)
		}
	}
	return nil
}

func (o *checkUNSOptions) fromHub(ctx context.Context, take func(client.Object) error) error {
	for _, kind := range []string{resource.KindNode, resource.KindDevice} {
		k, err := o.KindOf(ctx, resource.TypeMeta{APIVersion: resource.APIVersion, Kind: kind})
		if err != nil {
			return err
		}
		_, err = o.List(ctx, k, client.ListOptions{}, func(page []client.Object) error {
			for _, got := range page {
				if err := take(got); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *checkUNSOptions) print(cmd *cobra.Command, list []uns.Finding, count int) error {
	rows := [][]string{{"DEVICE", "PATH", "PROBLEM"}}
	for _, f := range list {
		rows = append(rows, []string{f.Device, f.Path, f.Problem})
	}
	if o.output == "table" && len(list) == 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "%s: each has a path of its own, with all levels\n", printer.Plural(count, "Device"))
		return nil
	}
	if list == nil {
		list = []uns.Finding{}
	}
	return printer.Rows(cmd.OutOrStdout(), o.output, list, rows)
}
