package broker

// The three calls for one client are made under its lock, so that they can't
// overtake one another, however many connections fight over the session. One that
// was taken over before anybody heard of it is not mentioned.

func (b *Broker) tellConnected(c *conn) {
	id := c.ident.ClientID
	lock := b.told.of(id)
	lock.Lock()
	defer lock.Unlock()
	if b.clients.connected(id) != c {
		return
	}
	if before, ok := b.present.Load(id); ok {
		b.gone(before.(*conn), ErrTakenOver)
	}
	b.present.Store(id, c)
	b.stats.connected.Add(1)
	b.stats.connects.Add(1)
	if b.opts.Presence == nil {
		return
	}
	b.opts.Presence.Connected(c.ident)
	if c.resumed { // its subscriptions are in force
		for _, filter := range c.client.filters() {
			b.opts.Presence.Subscribed(c.ident, filter)
		}
	}
}

func (b *Broker) tellSubscribed(c *conn, filter string) {
	if b.opts.Presence == nil {
		return
	}
	lock := b.told.of(c.ident.ClientID)
	lock.Lock()
	defer lock.Unlock()
	if b.isPresent(c) {
		b.opts.Presence.Subscribed(c.ident, filter)
	}
}

func (b *Broker) tellDisconnected(c *conn, cause error) {
	lock := b.told.of(c.ident.ClientID)
	lock.Lock()
	defer lock.Unlock()
	if b.isPresent(c) {
		b.gone(c, cause)
	}
}

func (b *Broker) isPresent(c *conn) bool {
	is, ok := b.present.Load(c.ident.ClientID)
	return ok && is.(*conn) == c
}

func (b *Broker) gone(c *conn, cause error) {
	b.present.Delete(c.ident.ClientID)
	b.stats.connected.Add(-1)
	if b.opts.Presence != nil {
		b.opts.Presence.Disconnected(c.ident, cause)
	}
}
