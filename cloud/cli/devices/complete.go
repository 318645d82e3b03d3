package devices

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/topics/resource"
)

// completeTwin offers devices, then properties of the one that was named.
func completeTwin(h *access.Hub, suffix string) access.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		names, directive := h.CompleteFromHub(cmd, func(ctx context.Context) []string {
			if len(args) == 0 {
				return h.ObjectNames(ctx, "devices", "")
			}
			return propertyNames(ctx, h, args[0], suffix)
		})
		if len(args) > 0 && suffix != "" {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return names, directive
	}
}

// propertyNames are those of a device's model; with a suffix only those that can be written.
func propertyNames(ctx context.Context, h *access.Hub, device, suffix string) (names []string) {
	var d resource.Device
	var m resource.DeviceModel
	if _, err := h.ReadObject(ctx, resource.KindDevice, device, &d); err != nil {
		return nil
	}
	if _, err := h.ReadObject(ctx, resource.KindDeviceModel, d.Spec.DeviceModelRef.Name, &m); err != nil {
		return nil
	}
	for _, p := range m.Spec.Properties {
		if suffix == "" || p.AccessMode == resource.ReadWrite {
			names = append(names, p.Name+suffix)
		}
	}
	return names
}
