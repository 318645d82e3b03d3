// SPDX-License-Identifier: Apache-2.0

package broker

import "sync"

// presenceReports tell Options.Presence of connections. The calls for one client are made under its lock, so that they come in order. A
// connection that was taken over before it was reported is not reported at all.
type presenceReports struct {
	presence Presence // nil: connections are not reported
	clients  *clients
	metrics  *metrics
	locks    stripedLocks // by client identifier
	conns    sync.Map     // client identifier → the *conn that was reported
}

func (p *presenceReports) connected(c *conn, resumed bool) {
	id := c.ident.ClientID
	lock := p.locks.of(id)
	lock.Lock()
	defer lock.Unlock()
	if p.clients.connected(id) != c {
		return
	}
	if before, ok := p.conns.Load(id); ok {
		p.gone(before.(*conn), ErrTakenOver)
	}
	p.conns.Store(id, c)
	p.metrics.connected.Add(1)
	p.metrics.connects.Add(1)
	if p.presence == nil {
		return
	}
	p.presence.Connected(c.ident)
	if resumed { // its subscriptions are in force
		for _, filter := range c.client.filters() {
			p.presence.Subscribed(c.ident, filter)
		}
	}
}

func (p *presenceReports) subscribed(c *conn, filter string) {
	if p.presence == nil {
		return
	}
	lock := p.locks.of(c.ident.ClientID)
	lock.Lock()
	defer lock.Unlock()
	if p.isReported(c) {
		p.presence.Subscribed(c.ident, filter)
	}
}

func (p *presenceReports) disconnected(c *conn, cause error) {
	lock := p.locks.of(c.ident.ClientID)
	lock.Lock()
	defer lock.Unlock()
	if p.isReported(c) {
		p.gone(c, cause)
	}
}

func (p *presenceReports) isReported(c *conn) bool {
	is, ok := p.conns.Load(c.ident.ClientID)
	return ok && is.(*conn) == c
}

func (p *presenceReports) gone(c *conn, cause error) {
	p.conns.Delete(c.ident.ClientID)
	p.metrics.connected.Add(-1)
	if p.presence != nil {
		p.presence.Disconnected(c.ident, cause)
	}
}
