package broker

// The three calls for one client are made under its lock, so that they can't
// overtake one another. A connection that was taken over before anybody heard of
// it is not mentioned.

func (b *Broker) tellConnected(c *conn) {
	lock := b.told.of(c.ident.ClientID)
	lock.Lock()
	defer lock.Unlock()
	if b.clients.connected(c.ident.ClientID) != c {
		return
	}
	c.told = true
	b.stats.connected.Add(1)
	if b.opts.Presence != nil {
		b.opts.Presence.Connected(c.ident)
	}
}

func (b *Broker) tellSubscribed(c *conn, filter string) {
	if b.opts.Presence == nil {
		return
	}
	lock := b.told.of(c.ident.ClientID)
	lock.Lock()
	defer lock.Unlock()
	if c.told {
		b.opts.Presence.Subscribed(c.ident, filter)
	}
}

func (b *Broker) tellDisconnected(c *conn, cause error) {
	lock := b.told.of(c.ident.ClientID)
	lock.Lock()
	defer lock.Unlock()
	if !c.told {
		return
	}
	c.told = false
	b.stats.connected.Add(-1)
	if b.opts.Presence != nil {
		b.opts.Presence.Disconnected(c.ident, cause)
	}
}
