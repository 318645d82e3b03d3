// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

// mailPost is traffic on users' own topics of one broker: senders at QoS 1 and 2, and two
// durable sessions that want all of it. One is online whenever it can be, the
// other connects only when everything is at rest.
type mailPost struct {
	s               *stand.Stand
	topic, broker   string
	senders         []*mailSender
	online, offline *mailbox
	fences          int
	fencer          *client.Client // publishes fences; nil: the offline mailbox does
}

// inflightWindow is how many publishes of a sender are on their way.
const inflightWindow = 16

// mailSender numbers its messages, and knows which of them were acknowledged.
type mailSender struct {
	c     *client.Client
	topic string
	qos   byte

	mu    sync.Mutex
	count int
	acked map[int]bool
}

// mailbox is a durable session and what it was given.
type mailbox struct {
	c  *client.Client
	id string
	// again permits what came already to come again; what is new still comes in order.
	again bool

	mu     sync.Mutex
	got    map[string]map[int]bool // by topic
	last   map[string]int          // by topic, on this connection
	fence  int
	faults []string
}

func newPost(s *stand.Stand, name, broker string) *mailPost {
	p := &mailPost{s: s, topic: "post/" + name, broker: broker}
	for i := range 4 {
		p.senders = append(p.senders, &mailSender{
			c: s.Client(broker, nil), topic: fmt.Sprintf("%s/%d", p.topic, i), qos: byte(1 + i%2), acked: map[int]bool{},
		})
	}
	p.online, p.offline = newMailbox(name+"-online"), newMailbox(name+"-offline")
	p.online.c = s.Client(broker, p.online.options(p.topic))
	return p
}

// newStream is telemetry: published on the node, and wanted on the hub. On its way it may
// be sent again, after others, when the link or a program was lost.
func newStream(s *stand.Stand) *mailPost {
	p := &mailPost{s: s, topic: devicesPrefix + "meter-1/telemetry", broker: s.Hub.MQTT, fencer: s.Client(s.Core(), nil)}
	for i := range 2 {
		p.senders = append(p.senders, &mailSender{
			c: s.Client(s.Core(), nil), topic: fmt.Sprintf("%s/%d", p.topic, i), qos: 1, acked: map[int]bool{},
		})
	}
	p.online, p.offline = newMailbox("stream-online"), newMailbox("stream-offline")
	p.online.again, p.offline.again = true, true
	p.online.c = s.Client(p.broker, p.online.options(p.topic))
	return p
}

func newMailbox(id string) *mailbox {
	return &mailbox{id: id, got: map[string]map[int]bool{}}
}

func (b *mailbox) options(topic string) func(*client.Options) {
	return func(o *client.Options) {
		o.ClientID, o.CleanStart, o.SessionExpiry = b.id, false, longestExpiry
		o.Subscriptions = []client.Subscription{{Filter: topic + "/+", QoS: 2}}
		o.OnConnect = func(_ context.Context, present bool) error {
			b.begin(present)
			return nil
		}
		o.OnMessage = b.take
	}
}

func (b *mailbox) begin(present bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last != nil && !present {
		b.faults = append(b.faults, b.id+": the session is gone")
	}
	if !b.again || b.last == nil {
		b.last = map[string]int{}
	}
}

// take checks what must hold of every message: on one connection the numbers of a
// topic rise, and at QoS 2 none comes twice at all.
func (b *mailbox) take(m client.Message) {
	number, _, _ := strings.Cut(string(m.Payload), " ")
	n, err := strconv.Atoi(number)
	b.mu.Lock()
	defer b.mu.Unlock()
	if strings.HasSuffix(m.Topic, "/fence") {
		b.fence = max(b.fence, n)
		return
	}
	if b.again && b.got[m.Topic][n] {
		return
	}
	if err != nil || n <= b.last[m.Topic] {
		b.faults = append(b.faults, fmt.Sprintf("%s: %s: %q after %d", b.id, m.Topic, number, b.last[m.Topic]))
	}
	b.last[m.Topic] = n
	got := b.got[m.Topic]
	if got == nil {
		got = map[int]bool{}
		b.got[m.Topic] = got
	}
	if got[n] && m.QoS == 2 {
		b.faults = append(b.faults, fmt.Sprintf("%s: %s: %d came twice at QoS 2", b.id, m.Topic, n))
	}
	got[n] = true
}

// run publishes as fast as acknowledgements come, until stop is closed or the
// connection is lost.
func (s *mailSender) run(stop <-chan struct{}) {
	slots := make(chan struct{}, inflightWindow)
	gone := make(chan struct{})
	var once sync.Once
	for {
		select {
		case slots <- struct{}{}:
		case <-gone:
			return
		case <-stop:
			for range inflightWindow { // see what is on its way to its end
				slots <- struct{}{}
			}
			return
		}
		s.mu.Lock()
		s.count++
		n := s.count
		s.mu.Unlock()
		s.c.PublishAsync(client.Message{Topic: s.topic, Payload: numberedPayload(n), QoS: s.qos}, func(err error) {
			if err == nil {
				s.mu.Lock()
				s.acked[n] = true
				s.mu.Unlock()
			} else {
				once.Do(func() { close(gone) }) // refused or lost: nobody knows what became of it
			}
			<-slots
		})
	}
}

// numberedPayload is a message's number, and now and then so much behind it that the journal's
// segments fill, and are compacted, within some rounds.
func numberedPayload(n int) []byte {
	text := strconv.Itoa(n)
	if n%8 == 0 {
		text += " " + strings.Repeat("x", 4<<10)
	}
	return []byte(text)
}

// missing names a message that was acknowledged, and that a mailbox does not have.
func (s *mailSender) missing(b *mailbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	got, lost := b.got[s.topic], []int{}
	for n := range s.acked {
		if !got[n] {
			lost = append(lost, n)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	slices.Sort(lost)
	return fmt.Errorf("%s: %d messages of %s at QoS %d were acknowledged and did not arrive: %v", b.id, len(lost), s.topic, s.qos, lost[:min(len(lost), 10)])
}

// check waits until both mailboxes have everything that was acknowledged.
func (p *mailPost) check(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := p.collect(ctx); err != nil {
		return err
	}
	return errors.Join(p.verdict(p.offline), harness.Eventually(ctx, within, func(context.Context) error { return p.verdict(p.online) }))
}

func (p *mailPost) verdict(b *mailbox) error {
	b.mu.Lock()
	faults := slices.Clone(b.faults)
	b.mu.Unlock()
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "\n"))
	}
	for _, s := range p.senders {
		if err := s.missing(b); err != nil {
			return err
		}
	}
	return nil
}

// collect connects the offline mailbox for as long as it takes to empty it. A fence
// behind all else says when; a second one is acknowledged when the broker has on disk
// that the rest was taken.
func (p *mailPost) collect(ctx context.Context) error {
	o := client.Options{Servers: []string{"mqtt://" + p.broker}, Backoff: client.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}}
	p.offline.options(p.topic)(&o)
	subscribed := make(chan struct{})
	begin := o.OnConnect
	var once sync.Once
	o.OnConnect = func(ctx context.Context, present bool) error {
		once.Do(func() { close(subscribed) })
		return begin(ctx, present)
	}
	c, err := client.New(o)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(running) }()
	select {
	case <-subscribed:
	case <-ctx.Done():
	}
	for range 2 {
		p.fences++
		if err = p.pass(ctx, c); err != nil {
			break
		}
	}
	stop()
	return errors.Join(err, <-ended)
}

func (p *mailPost) pass(ctx context.Context, c *client.Client) error {
	if p.fencer != nil {
		c = p.fencer
	}
	err := c.Publish(ctx, client.Message{Topic: p.topic + "/fence", Payload: []byte(strconv.Itoa(p.fences)), QoS: 1})
	if err != nil {
		return err
	}
	return harness.Eventually(ctx, settleTime, func(context.Context) error {
		p.offline.mu.Lock()
		defer p.offline.mu.Unlock()
		if p.offline.fence < p.fences {
			return fmt.Errorf("%s waits for what is in its queue", p.offline.id)
		}
		return nil
	})
}

func (p *mailPost) acked() (n int) {
	for _, s := range p.senders {
		s.mu.Lock()
		n += len(s.acked)
		s.mu.Unlock()
	}
	return n
}
