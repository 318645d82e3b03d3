package broker

// Subscriber is a client that gets the messages of a topic, and the filter that brings them.
type Subscriber struct {
	Identity Identity
	Filter   string // without $share/{group}/
}

// Subscribers lists who is connected now and gets messages of the topic, once for
// each filter that matches.
func (b *Broker) Subscribers(topic string) (list []Subscriber) {
	b.router.index.match(topic, func(s *subscription) {
		if id := s.client.rights(); s.client.sess.Online() && b.acl.gets(id, s.plain, topic) {
			list = append(list, Subscriber{id, s.plain})
		}
	})
	return list
}
