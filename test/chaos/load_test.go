// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
)

// deviceObjects: lamps that the virtual mapper drives, meters whose mapper is the test. A lamp
// begins with a value, for an empty one is none to MQTT, and would clear the topic.
var deviceObjects = `
apiVersion: edgebus.io/v1alpha1
kind: DeviceModel
metadata: {name: lamp}
spec:
  properties:
    - {name: a, accessMode: ReadWrite}                 # wanted by the cloud alone
    - {name: b, accessMode: ReadWrite}                 # the same, and cleared at times
    - {name: c, accessMode: ReadWrite}                 # wanted by both, policy cloud
    - {name: e, accessMode: ReadWrite, conflict: edge} # by both, policy edge
    - {name: l, accessMode: ReadWrite, conflict: latest}
  propertyVisitors:
    - protocol: virtual
      visitors:
        - {propertyName: a, config: {value: new}}
        - {propertyName: b, config: {value: new}}
        - {propertyName: c, config: {value: new}}
        - {propertyName: e, config: {value: new}}
        - {propertyName: l, config: {value: new}}
---
` + stand.DeviceManifests("lamp", "virtual", "lamp-1", "lamp-2", "lamp-3", "guest", "bell") + // nobody sets the bell, it has commands
	stand.ModelManifest("meter", "{name: left}", "{name: right}", "{name: z}") + // left and right are always reported together
	stand.DeviceManifests("meter", "by-hand", "meter-1", "meter-2")

// guestDevice is a lamp that comes and goes: what was stored for one is not the next one's.
const guestDevice = `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","metadata":{"name":"guest"},
"spec":{"deviceModelRef":{"name":"lamp"},"nodeName":"n1","protocol":{"type":"virtual"}}}`

const devicesPrefix = "v1/nodes/n1/devices/"

// topicWriter is the one publisher of a topic at one broker. Its values are its name and
// a number, so that each is told from every other and from which comes first.
type topicWriter struct {
	c       *client.Client
	name    string
	topic   string
	members []string // wrap the value in a JSON object with these members
	clears  bool     // now and then it clears the topic
	local   bool     // on the node: an override
	passing bool     // of the guest: refused while there is none, and gone with it
	board   string   // a retained message of users' own topics, below this one
	chance  *rand.Rand

	mu            sync.Mutex
	count, stored int
	since         []writeAttempt // the last one that was acknowledged, and all after it
}

type writeAttempt struct {
	value string
	acked bool
}

// run publishes one value after the other until stop is closed. One that is under
// way is seen to its end, which comes when everything is mended. Half of those who
// are interrupted leave it at that, so that nothing newer hides what was lost.
func (w *topicWriter) run(ctx context.Context, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(w.chance.IntN(6)) * time.Millisecond):
		}
		err := w.c.Publish(ctx, client.Message{Topic: w.topic, Payload: w.next(), QoS: 1, Retain: w.board != ""})
		var refused *client.Refused
		switch {
		case err == nil:
			w.acked()
		case errors.Is(err, client.ErrConnectionLost): // nobody knows
			if w.chance.IntN(2) == 0 {
				return nil
			}
		case errors.As(err, &refused) && strings.Contains(refused.Reason, "is stopping"):
		case errors.As(err, &refused) && refused.Code == 0x83: // its disk is gone: nobody knows what is on it
		case errors.As(err, &refused) && w.passing && refused.Code == 0x90: // no such device now
		default:
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
}

func (w *topicWriter) next() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	value := w.name + "/" + strconv.Itoa(w.count)
	if w.clears && w.chance.IntN(4) == 0 {
		value = ""
	}
	w.since = append(w.since, writeAttempt{value: value})
	if w.members == nil {
		return []byte(value)
	}
	var pairs []string
	for _, m := range w.members {
		pairs = append(pairs, fmt.Sprintf("%q:%q", m, value))
	}
	return []byte("{" + strings.Join(pairs, ",") + "}")
}

func (w *topicWriter) acked() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stored++
	w.since = w.since[len(w.since)-1:]
	w.since[0].acked = true
}

// may says why a value can't be what the writer left.
func (w *topicWriter) may(value string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if value == "" && (len(w.since) == 0 || !w.since[0].acked) {
		return nil // nothing was ever acknowledged
	}
	for _, a := range w.since {
		if a.value == value {
			return nil
		}
	}
	return fmt.Errorf("%s is %q, which is none of %v: the last one acknowledged, and those after it", w.name, value, w.since)
}

// brokerSides are the programs that have a broker and a disk.
var brokerSides = []string{"hub", "core"}

// writeLoad is everybody who publishes.
type writeLoad struct {
	writers []*topicWriter
	posts   []*mailPost
	askers  []*commandSender
	boards  map[string]*stand.Watcher // retained messages of users' own topics, by prefix
}

func newLoad(s *stand.Stand) *writeLoad {
	l := &writeLoad{boards: map[string]*stand.Watcher{}}
	hub := []*client.Client{s.Client(s.Hub.MQTT, nil), s.Client(s.Hub.MQTT, nil)}
	core := []*client.Client{s.Client(s.Core(), nil), s.Client(s.Core(), nil)}
	add := func(c *client.Client, name, topic string, change func(*topicWriter)) {
		w := &topicWriter{c: c, name: name, topic: devicesPrefix + topic, chance: rand.New(rand.NewPCG(uint64(len(l.writers)), 7))}
		if change != nil {
			change(w)
		}
		l.writers = append(l.writers, w)
	}
	for i, lamp := range []string{"lamp-1", "lamp-2", "lamp-3", "guest"} {
		for _, p := range []string{"a", "b", "c", "e", "l"} {
			add(hub[i%2], "cloud-"+lamp+"-"+p, lamp+"/desired/"+p, func(w *topicWriter) {
				w.clears, w.passing = p != "a", lamp == "guest"
			})
		}
		for _, p := range []string{"c", "e", "l"} {
			add(core[i%2], "local-"+lamp+"-"+p, lamp+"/desired/"+p, func(w *topicWriter) {
				w.clears, w.local, w.passing = true, true, lamp == "guest"
			})
		}
	}
	for i, meter := range []string{"meter-1", "meter-2"} {
		add(core[i], meter+"-both", meter+"/reported", func(w *topicWriter) { w.members = []string{"left", "right"} })
		add(core[i], meter+"-z", meter+"/reported/z", nil)
	}
	for i, broker := range []string{s.Hub.MQTT, s.Core()} {
		name := brokerSides[i]
		l.posts = append(l.posts, newPost(s, name, broker))
		l.askers = append(l.askers, newAsker(s, "ask-"+name, broker))
		board := "board/" + name
		l.boards[board] = s.Watch(broker, board+"/#", nil)
		for n := range 4 {
			topic := fmt.Sprintf("%s/%d", board, n)
			add(s.Client(broker, nil), topic, "", func(w *topicWriter) { w.topic, w.board, w.clears = topic, board, n > 1 })
		}
	}
	l.posts = append(l.posts, newStream(s))
	return l
}

// run lets everybody publish while f runs, or for some time.
func (l *writeLoad) run(d time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	stop := make(chan struct{})
	ended := make(chan error, len(l.writers))
	for _, w := range l.writers {
		go func() { ended <- w.run(ctx, stop) }()
	}
	var posting sync.WaitGroup
	for _, p := range l.posts {
		for _, sender := range p.senders {
			posting.Go(func() { sender.run(stop) })
		}
	}
	for _, a := range l.askers {
		posting.Go(func() { a.run(ctx, stop) })
	}
	time.Sleep(d) // the load lasts as long as the plan says
	var err error
	if f != nil {
		if err = f(); err != nil {
			cancel() // nobody will answer those who wait
		}
	}
	close(stop)
	for range l.writers {
		err = errors.Join(err, <-ended)
	}
	posting.Wait()
	return err
}

func (l *writeLoad) String() string {
	stored, count := 0, 0
	for _, w := range l.writers {
		stored, count = stored+w.stored, count+w.count
	}
	mail := 0
	for _, p := range l.posts {
		mail += p.acked()
	}
	return fmt.Sprintf("%d of %d values and %d messages acknowledged, %s", stored, count, mail, tallyCommands(l.askers))
}
