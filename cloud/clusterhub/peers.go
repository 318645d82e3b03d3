// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"context"
	"errors"
	"io/fs"
	"sync/atomic"

	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/cluster"
	"github.com/edgebus/edgebus/cloud/clusterca"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/mirror"
	"github.com/edgebus/edgebus/cloud/peer"
)

// peers are the other hubs of the cluster, as this one reaches them from its start on.
type peers struct {
	*peer.Hubs
	name      string
	address   string // of this hub, as the log says it
	authority atomic.Pointer[enroll.Authority]
	member    atomic.Pointer[cluster.Member]
	mirrors   *mirror.Set // of what another one serves; nil before this one stands by
}

// openPeers listens for other hubs.
func openPeers(o Options, key sealed.Key, name string) (*peers, error) {
	p := &peers{name: name}
	authority, err := enroll.OpenReplica(hubdata.AuthorityOptions(o.Config, o.Log))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the first hub has none before it serves
		return nil, err
	}
	if err == nil {
		p.authority.Store(authority)
	}
	known, err := clusterca.New(key)
	if err != nil {
		return nil, err
	}
	p.Hubs, err = peer.Listen(peer.Options{
		Listen: o.Config.Store.Peer.Listen, Name: name, TLS: known.Config(), Log: o.Log,
		Owner: func() (peer.Owner, <-chan struct{}) {
			m := p.member.Load()
			if m == nil { // it has not read the log yet
				return peer.Owner{}, nil
			}
			name, address, changed := m.OwnerAddress()
			return peer.Owner{Name: name, Address: address}, changed
		},
	})
	if err != nil {
		return nil, err
	}
	if p.address, err = p.Address(o.Config.Store.Peer.Advertise); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// owner is the name of who owns the log; empty: nobody that this hub knows of.
func (p *peers) owner() string {
	if m := p.member.Load(); m != nil {
		return m.Owner()
	}
	return ""
}

// ownsNow reports whether this hub has taken the log.
func (p *peers) ownsNow() bool { return p.owner() == p.name }

// start reaches the others from now on, until ctx ends.
func (p *peers) start(ctx context.Context, m *cluster.Member) {
	p.member.Store(m)
	go func() { _ = p.Run(ctx) }()
}
