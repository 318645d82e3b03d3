// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"net"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/history/requests"
	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/broker/views/runner"
	"github.com/edgebus/edgebus/broker/views/settings"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// openViews makes the views of all nodes' Devices that are switched on, and clears what others have left.
func openViews(
	cfg configs.Hub, dial func(broker.Identity) net.Conn, retained func(filter string) func(max int) []broker.Message,
	find func(ctx context.Context, node, device string) (resource.Bundle, requests.Source, error), record func(resource.Occurrence), log zerolog.Logger,
) (*runner.Views, error) {
	return settings.Open(runner.Options{
		Dir: cfg.Data.Dir, Dial: dial, Retained: retained, Past: runner.PastOf(find), Log: log,
		Rejected: func(view string, d *views.Device, reason string) {
			m := d.Object.Metadata
			record(resource.Occurrence{
				Kind: resource.KindDevice, Namespace: m.Namespace, Name: m.Name, UID: m.UID, Type: resource.EventWarning, Reason: "NotShown", About: view,
				Message: "the view " + view + " can't show it: " + reason,
			})
		},
	}, cfg.Views)
}
