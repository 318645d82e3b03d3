// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

func newModels() *cobra.Command {
	return &cobra.Command{
		Use:   "models [NAME]",
		Short: "List the DeviceModels that come with edgebus, or print one",
		Long: `List the library of DeviceModels of devices that are common, or print one of them as a manifest. What such a
device needs is at its top. No hub is asked: "edgebus get devicemodels" lists those that a hub has.

` + exitcode.Help,
		Example: `  edgebus models
  edgebus models shelly-plug | edgebus apply -f -
  edgebus device add heater --model shelly-plug --node demo shellyplusplugs-aabbccddeeff`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			names, _ := libraryNames()
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listLibrary(cmd.OutOrStdout())
			}
			m, err := libraryModel(args[0])
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(m.YAML)
			return err
		},
	}
}

func listLibrary(out io.Writer) error {
	models, err := configs.LibraryModels()
	if err != nil {
		return err
	}
	rows := [][]string{{"NAME", "PROTOCOL", "TITLE"}}
	for _, m := range models {
		rows = append(rows, []string{m.Metadata.Name, m.Protocols(), m.Spec.Title})
	}
	return new(printer.AlignedRows).Write(out, rows)
}

func libraryNames() (names []string, err error) {
	models, err := configs.LibraryModels()
	for _, m := range models {
		names = append(names, m.Metadata.Name)
	}
	return names, err
}

func libraryModel(name string) (configs.LibraryModel, error) {
	models, err := configs.LibraryModels()
	if err != nil {
		return configs.LibraryModel{}, err
	}
	var names []string
	for _, m := range models {
		if m.Metadata.Name == name {
			return m, nil
		}
		names = append(names, m.Metadata.Name)
	}
	return configs.LibraryModel{}, exitcode.Errorf(exitcode.NotFound, "no model %s comes with edgebus%s (edgebus models lists them)", name, resource.DidYouMean(name, names))
}

// readModel reads a model of the hub. One that the hub doesn't have is made of the library, if that has it.
func (o *addOptions) readModel(ctx context.Context) (m resource.DeviceModel, err error) {
	kind, err := o.ReadObject(ctx, resource.KindDeviceModel, o.model, &m)
	if !errors.Is(err, resource.NotFound) {
		return m, err
	}
	library, unknown := libraryModel(o.model)
	if unknown != nil {
		return m, err
	}
	body, err := json.Marshal(library.DeviceModel)
	if err != nil {
		return m, err
	}
	if _, err := o.Create(ctx, kind, o.Namespace, body, client.WriteOptions{DryRun: o.dryRun, Strict: true}); err != nil {
		return m, err
	}
	if !o.dryRun { // the Device alone is printed then
		_, err = fmt.Fprintf(o.out, "devicemodel/%s made: it comes with edgebus\n", o.model)
	}
	return library.DeviceModel, err
}
