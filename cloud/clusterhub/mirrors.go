// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"context"
	"io"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/cloud/mirror"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/peer"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
)

// purposeMirror is that of streams that tell another hub what objects there are.
const purposeMirror = "mirror"

// openMirrors has this hub, which stands by, answer lists and watches that it is sent, as far as the owner lets it.
func (s *SharedLog) openMirrors(m metrics.Registry, forward *peer.Forwarder) {
	mirrors := mirror.New(mirror.Options{
		Log:  s.log,
		Dial: func(ctx context.Context) (net.Conn, error) { return s.peers.Dial(ctx, purposeMirror) },
		Copy: func(kind string) mirror.Copy { return disk.NewKindMirror(kind, disk.Options{}) },
	})
	answers := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "edgebus_cluster_mirror_answers_total", Help: "Lists and watches that this hub has answered itself while it stood by.",
	})
	m.MustRegister(answers, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "edgebus_cluster_mirrored_objects", Help: "Objects of which this hub, which stands by, answers lists and watches itself.",
	}, func() float64 { return float64(mirrors.Objects()) }))
	server := api.NewMirrorServer(api.Options{
		Objects: objects.New(objects.Options{Reader: noObjects{}, Log: s.log}), Reader: mirrors, Watcher: mirrors, Log: s.log, Version: s.version,
	}, mirrors, answers.Inc)
	s.peers.mirrors = mirrors
	forward.Offers = peer.StandbyAnswers{Make: server.Offer, Told: server.Told, Answer: func(w http.ResponseWriter, r *http.Request, owner io.Reader) bool {
		ctx, stop := context.WithCancel(r.Context())
		defer stop()
		defer context.AfterFunc(mirrors.Context(), stop)()
		return server.Answer(w, r.WithContext(ctx), owner)
	}}
}

// noObjects are those that a hub which stands by has by itself: what it encodes comes from its mirrors.
type noObjects struct{ store.Reader }

// List is of store.Reader.
func (noObjects) List(context.Context, string, store.ListOptions) (store.Page, error) {
	return store.Page{}, nil
}

// MirrorOptions have hubs that stand by answer lists and watches of what this one has; none without other hubs.
func (s *SharedLog) MirrorOptions(st *disk.Store) (o api.MirrorOptions) {
	if s != nil {
		o.Offered = peer.OfferOf
		o.Position = func(kind string) api.MirrorPosition {
			p := api.MirrorPosition{Owner: s.instance}
			p.Rev, p.Changed, p.Objects = st.Changed(kind)
			return p
		}
	}
	return o
}
