// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
)

// recorder is a subscriber to everything of n1 at one broker that remembers, over
// all rounds, how far each topic had come.
type recorder struct {
	*stand.Watcher
	broker  string
	forgets bool // a device that was deleted takes its counters along

	mu     sync.Mutex
	vers   map[string]uint64            // the last version of each topic
	counts map[string]int               // the last number of each writer on each topic
	values map[string]map[uint64]string // of desired topics, by version
	faults []string
}

func startRecorder(s *stand.Stand, broker string) *recorder {
	r := &recorder{broker: broker, forgets: broker == s.Hub.MQTT, vers: map[string]uint64{}, counts: map[string]int{}, values: map[string]map[uint64]string{}}
	r.Watcher = s.Watch(broker, "v1/nodes/n1/#", r.hear)
	return r
}

// hear checks what must hold of every message: neither a topic's version nor the
// numbers that one writer gave its values ever go back, and a version has one value.
func (r *recorder) hear(m client.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	value := string(m.Payload)
	if ver := stand.VersionOf(m); ver != 0 && !(r.forgets && strings.Contains(m.Topic, "/guest/")) {
		if last := r.vers[m.Topic]; ver < last {
			r.fault("%s went from version %d back to %d (%q)", m.Topic, last, ver, value)
		}
		r.vers[m.Topic] = ver
		known := r.values[m.Topic]
		if known == nil {
			known = map[uint64]string{}
			r.values[m.Topic] = known
		}
		if was, ok := known[ver]; ok && was != value {
			r.fault("%s has version %d twice, as %q and as %q", m.Topic, ver, was, value)
		}
		known[ver] = value
	}
	if writer, number, ok := strings.Cut(value, "/"); ok {
		if n, err := strconv.Atoi(number); err == nil {
			key := m.Topic + " " + writer
			if n < r.counts[key] {
				r.fault("%s went from value %d of %s back to %d", m.Topic, r.counts[key], writer, n)
			}
			r.counts[key] = n
		}
	}
}

func (r *recorder) fault(format string, args ...any) {
	r.faults = append(r.faults, r.broker+": "+fmt.Sprintf(format, args...))
}

func (r *recorder) verdict() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.faults) > 0 {
		return errors.New(strings.Join(r.faults, "\n"))
	}
	return nil
}

func (r *recorder) value(topic string, ver uint64) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.values[topic][ver]
	return v, ok
}

// reported are the versions of all reported values that were ever heard, but the guest's.
func (r *recorder) reported() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	vers := map[string]uint64{}
	for topic, ver := range r.vers {
		if strings.Contains(topic, "/reported/") && !strings.Contains(topic, "/guest/") {
			vers[topic] = ver
		}
	}
	return vers
}

// shown are the versions of what the broker shows now.
func (r *recorder) shown() map[string]uint64 {
	vers := map[string]uint64{}
	for topic, m := range r.Tree() {
		vers[topic] = stand.VersionOf(m)
	}
	return vers
}

// boards is whether the retained messages of users' own topics are as they were left.
func (c *chaosRun) boards(context.Context) error {
	for _, w := range c.load.writers {
		if w.board == "" {
			continue
		}
		shown := c.load.boards[w.board]
		if !shown.Up() {
			return fmt.Errorf("the watcher of %s is not connected", w.board)
		}
		m, _ := shown.Get(w.topic)
		if err := w.may(string(m.Payload)); err != nil {
			return err
		}
	}
	return nil
}

// atRest is whether both sides have everything, show the same, and the devices do
// what is wanted of them.
func (c *chaosRun) atRest(context.Context) error {
	if err := c.CheckWhole(c.cloud.Watcher, c.node.Watcher); err != nil {
		return err
	}
	hub, node := c.cloud.Tree(), c.node.Tree()
	if err := sameTrees(hub, node); err != nil {
		return err
	}
	return lampsFollow(node)
}

// sameTrees compares the trees, allowing for what differs on purpose: the node's state is
// the hub's alone, and on the node desired is what is in force.
func sameTrees(hub, node map[string]client.Message) error {
	for topic, h := range hub {
		n, ok := node[topic]
		switch {
		case strings.HasSuffix(topic, "/n1/state"):
			if ok {
				return fmt.Errorf("%s is on the node", topic)
			}
			continue
		case strings.Contains(topic, "/desired/"):
			if o, over := hub[strings.Replace(topic, "/desired/", "/override/", 1)]; over {
				h = o
			}
			if string(h.Payload) != string(n.Payload) {
				return fmt.Errorf("%s should be %q on the node, and is %q", topic, h.Payload, n.Payload)
			}
			continue
		}
		for _, property := range []string{"ver", "for", "basedOn", "until"} {
			if h.Property(property) != n.Property(property) {
				return fmt.Errorf("%s: %s is %q at the hub, %q on the node", topic, property, h.Property(property), n.Property(property))
			}
		}
		if string(h.Payload) != string(n.Payload) {
			return fmt.Errorf("%s is %q at the hub, %q on the node", topic, h.Payload, n.Payload)
		}
	}
	for topic, n := range node {
		if _, ok := hub[topic]; ok {
			continue
		}
		o, over := hub[strings.Replace(topic, "/desired/", "/override/", 1)]
		if !over || string(o.Payload) != string(n.Payload) {
			return fmt.Errorf("%s is %q on the node alone", topic, n.Payload)
		}
	}
	return nil
}

// lampsFollow is whether every lamp reports what is wanted of it, as the answer to that.
func lampsFollow(node map[string]client.Message) error {
	for topic, wanted := range node {
		lamp, property, ok := strings.Cut(strings.TrimPrefix(topic, devicesPrefix), "/desired/")
		if !ok {
			continue
		}
		reported := node[devicesPrefix+lamp+"/reported/"+property]
		if string(reported.Payload) != string(wanted.Payload) || reported.Property("for") != wanted.Property("ver") {
			return fmt.Errorf("%s: %q, version %s, is wanted; %q, for %s, is reported", topic,
				wanted.Payload, wanted.Property("ver"), reported.Payload, reported.Property("for"))
		}
	}
	for _, lamp := range []string{"lamp-1", "lamp-2", "lamp-3", "guest"} {
		topic := devicesPrefix + lamp + "/state"
		if state := string(node[topic].Payload); state != "online" {
			return fmt.Errorf("%s is %q", topic, state)
		}
	}
	return nil
}

// always is what must hold at any time, and can be judged at rest.
func (c *chaosRun) always() error {
	errs := []error{c.cloud.verdict(), c.node.verdict(), c.drives(), c.commands()}
	hub := c.cloud.Tree()
	at := func(topic string) string { return string(hub[topic].Payload) }
	for _, w := range c.load.writers {
		switch {
		case w.passing, w.board != "":
		case w.members != nil:
			left := at(w.topic + "/left")
			errs = append(errs, w.may(left))
			if right := at(w.topic + "/right"); left != right {
				errs = append(errs, fmt.Errorf("%s was written as a whole, and is in parts: %q and %q", w.topic, left, right))
			}
		case !w.local:
			errs = append(errs, w.may(at(w.topic)))
		default:
			errs = append(errs, w.override(at, strings.Replace(w.topic, "/desired/", "/override/", 1)))
		}
	}
	if died := c.Died(); len(died) > 0 {
		errs = append(errs, fmt.Errorf("ended by themselves: %v", died))
	}
	return errors.Join(errs...)
}

// override judges a local wish. The cloud's newer wish ends it, unless the policy is
// edge: then it stays until it is cleared.
func (w *topicWriter) override(at func(string) string, topic string) error {
	value := at(topic)
	if value == "" && !strings.HasSuffix(topic, "/e") {
		return nil
	}
	return w.may(value)
}

// driveRecord is one line of the drive log.
type driveRecord struct {
	Device, Property, Command, Value string
	Ver                              uint64
}

// drives judges what the mapper did to its devices.
func (c *chaosRun) drives() error {
	file, err := os.Open(c.driveLog)
	if err != nil {
		return err
	}
	defer file.Close()
	type seen struct {
		ver     uint64
		value   string
		repeats int
	}
	last := map[string]*seen{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var d driveRecord
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			return fmt.Errorf("drive log: %q: %w", lines.Text(), err)
		}
		if d.Command != "" {
			continue
		}
		topic := devicesPrefix + d.Device + "/desired/" + d.Property
		s := last[topic]
		if s == nil {
			s = &seen{}
			last[topic] = s
		}
		switch {
		case d.Ver < s.ver:
			return fmt.Errorf("%s was driven with version %d (%q) after %d (%q)", topic, d.Ver, d.Value, s.ver, s.value)
		case d.Ver == s.ver && d.Value != s.value:
			return fmt.Errorf("%s was driven with version %d as %q and as %q", topic, d.Ver, s.value, d.Value)
		case d.Ver == s.ver:
			s.repeats++
		}
		if s.repeats > c.mapperEnds {
			return fmt.Errorf("%s was driven %d times with a version it had; its mapper ended %d times", topic, s.repeats, c.mapperEnds)
		}
		if shown, ok := c.node.value(topic, d.Ver); ok && shown != d.Value {
			return fmt.Errorf("%s was driven with %q, but version %d is %q", topic, d.Value, d.Ver, shown)
		}
		s.ver, s.value = d.Ver, d.Value
	}
	return lines.Err()
}
