// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/cloud/blobs"
	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/discovery"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/events"
	"github.com/edgebus/edgebus/cloud/fleet"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/render"
	"github.com/edgebus/edgebus/cloud/resourcesync"
	"github.com/edgebus/edgebus/cloud/rules"
	"github.com/edgebus/edgebus/cloud/sources"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/twin"
	"github.com/edgebus/edgebus/cloud/upgrade"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
)

// controllerOptions are what the hub's controllers are made from.
type controllerOptions struct {
	Config      configs.Hub
	Registry    *objects.Registry
	Store       store.Store
	Blobs       *blobs.Store
	Recorder    *events.Recorder
	Metrics     metrics.Registry
	Log         zerolog.Logger
	Twins       *twin.Twins
	Projections []twin.Projection
	Rules       *rules.Engine
}

// newControllers makes all that acts on objects, and returns what runs it.
func newControllers(o controllerOptions) func(context.Context) error {
	cfg, st, records, record := o.Config.Sources, o.Store, objects.Records(o.Store), o.Recorder.Record
	resolver := sources.NewResolver(sources.ResolverOptions{
		Client:  sources.New(sources.Options{Allow: parseNetworks(cfg.Allow), Dir: filepath.Join(o.Config.Data.Dir, "sources")}),
		Objects: o.Registry.Controller("sources"), Reader: st, Writer: records, Blobs: o.Blobs, Interval: cfg.Interval,
	})
	all := slices.Concat(
		newProjectionControllers(o.Twins, o.Projections),
		resolver.Controllers(),
		o.Rules.Controllers(),
		[]control.Controller{
			render.NewController(render.Options{
				Objects: o.Registry.Controller("render"), Reader: st, Writer: records, Blobs: o.Blobs, Sources: resolver, Record: record, Metrics: o.Metrics,
			}),
			enroll.LabelsController(o.Registry.Controller("node-labels")),
			upgrade.Controller(upgrade.Options{Objects: o.Registry, Reader: st, Writer: records, Record: record}),
			resourcesync.NewController(resourcesync.Options{
				Objects: o.Registry, Reader: st, Sources: resolver, Content: o.Blobs.ReadAt, Record: record, Interval: cfg.Interval,
			}),
		},
		fleet.Controllers(fleet.Options{Objects: o.Registry, Reader: st, Sources: resolver, Record: record, Poll: cfg.Interval}),
		discovery.Controllers(discovery.Options{
			Objects: o.Registry, Reader: st, Writer: records, Record: record, Log: o.Log,
			Reports: func(kind topics.Kind) discovery.Reports { return twinReports{o.Twins.Reports(kind)} },
		}),
	)
	runtime := control.New(control.Options{Reader: st, Watcher: st, Metrics: o.Metrics, Log: o.Log})
	return func(ctx context.Context) error { return runtime.Run(ctx, all...) }
}

// parseNetworks reads networks that configs has checked.
func parseNetworks(texts []string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// twinReports are what the twins report, in the types of package discovery.
type twinReports struct{ *twin.Reports }

// Next waits for reports.
func (r twinReports) Next(ctx context.Context) ([]discovery.Report, error) {
	list, err := r.Reports.Next(ctx)
	out := make([]discovery.Report, 0, len(list))
	for _, one := range list {
		out = append(out, discovery.Report{Address: one.Address, Value: one.Value})
	}
	return out, err
}
