package cloud

import (
	"context"
	"net/netip"
	"path/filepath"

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
	"github.com/edgebus/edgebus/cloud/sources"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/twin"
	"github.com/edgebus/edgebus/cloud/upgrade"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
)

// newControllers runs all that acts on objects, and more besides.
func newControllers(dataDir string, cfg configs.Sources, objs *objects.Registry, st store.Store, content *blobs.Store, recorder *events.Recorder,
	figures metrics.Registry, log zerolog.Logger, tw *twin.Twins, more []control.Controller,
) func(context.Context) error {
	src := sources.NewResolver(sources.ResolverOptions{
		Client: sources.New(sources.Options{Allow: parseNetworks(cfg.Allow), Dir: filepath.Join(dataDir, "sources")}), Objects: objs.Controller("sources"), Reader: st, Writer: st, Blobs: content, Interval: cfg.Interval,
	})
	all := append(more, src.Controllers()...)
	all = append(all, render.NewController(render.Options{
		Objects: objs.Controller("render"), Reader: st, Writer: st, Blobs: content, Sources: src, Record: recorder.Record, Metrics: figures,
	}))
	all = append(all, fleet.Controllers(fleet.Options{
		Objects: objs, Reader: st, Sources: src, Record: recorder.Record, Poll: cfg.Interval,
	})...)
	all = append(all, enroll.LabelsController(objs.Controller("node-labels")))
	all = append(all, upgrade.Controller(upgrade.Options{Objects: objs, Reader: st, Writer: st, Record: recorder.Record}))
	all = append(all, discovery.Controllers(discovery.Options{
		Objects: objs, Reader: st, Writer: st, Record: recorder.Record, Log: log,
		Reports: func(kind topics.Kind) discovery.Reports { return twinReports{tw.Reports(kind)} },
	})...)
	all = append(all, resourcesync.NewController(resourcesync.Options{
		Objects: objs, Reader: st, Sources: src, Content: content.ReadAt, Record: recorder.Record, Interval: cfg.Interval,
	}))
	runtime := control.New(control.Options{Reader: st, Watcher: st, Metrics: figures, Log: log})
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
