// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/history"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// storedObjects are a hub's objects.
type storedObjects map[store.Key]any

func (o storedObjects) Get(_ context.Context, key store.Key) (store.Object, error) {
	v, ok := o[key]
	if !ok {
		return store.Object{}, resource.Errorf(resource.NotFound, "", "%s", key)
	}
	data, err := json.Marshal(v)
	return store.Object{Key: key, Data: data}, err
}

func (o storedObjects) List(ctx context.Context, kind string, _ store.ListOptions) (p store.Page, err error) {
	for key := range o {
		if key.Kind == kind {
			item, err := o.Get(ctx, key)
			if err != nil {
				return p, err
			}
			p.Items = append(p.Items, item)
		}
	}
	return p, nil
}

// passedOn notes what was passed on to the tree.
type passedOn struct {
	broker.Tree
	topics []string
}

func (p *passedOn) Publish(m broker.Message, done func(error)) {
	p.topics = append(p.topics, m.Topic)
	done(nil)
}

// hubRig is a hub's copies, and the nodes that send them.
type hubRig struct {
	*NodeCopies
	t       *testing.T
	dir     string
	objects storedObjects
	tree    passedOn
	now     time.Time

	mu      sync.Mutex
	answers []broker.Message
}

var meterModel = resource.DeviceModel{Spec: resource.DeviceModelSpec{Properties: []resource.Property{{Name: "power", Type: resource.TypeFloat}}}}

func newHubRig(t *testing.T) *hubRig {
	r := &hubRig{t: t, dir: t.TempDir(), now: time.Now(), objects: storedObjects{
		{Kind: resource.KindNode, Name: "n1"}: resource.Node{}, {Kind: resource.KindNode, Name: "n2"}: resource.Node{},
		{Kind: resource.KindDeviceModel, Namespace: "default", Name: "meter"}: meterModel,
	}}
	r.bind("u1", "n1", nil)
	r.open()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	return r
}

func (r *hubRig) open() {
	copies, err := New(Options{
		Dir: r.dir, Bytes: 64 << 20, Reader: r.objects, Tree: &r.tree, Log: zerolog.Nop(), Now: func() time.Time { return r.now },
		Publish: func(m broker.Message) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.answers = append(r.answers, m)
		},
	})
	require.NoError(r.t, err)
	r.NodeCopies = copies
}

func (r *hubRig) bind(uid, node string, h *resource.DeviceHistory) {
	r.objects[store.Key{Kind: resource.KindDevice, Namespace: "default", Name: uid}] = resource.Device{
		Metadata: resource.Meta{Name: uid, Namespace: "default", UID: uid},
		Spec:     resource.DeviceSpec{NodeName: node, DeviceModelRef: resource.ObjectRef{Name: "meter"}, History: h},
	}
}

func (r *hubRig) publish(node string, m broker.Message) error {
	answer := make(chan error, 1)
	m.Topic, m.Publisher = "v1/nodes/"+node+"/history/copy", &broker.Identity{ClientID: node}
	r.Publish(m, func(err error) { answer <- err })
	return <-answer
}

// send sends a node's history as its core does.
func (r *hubRig) send(node string, s *history.Store) {
	var w history.WantedPart
	for n := 0; ; n++ {
		p, ok, err := s.NextPart(w, 16<<10)
		require.NoError(r.t, err)
		if !ok {
			return
		}
		correlation := []byte(strconv.Itoa(n))
		require.NoError(r.t, r.publish(node, broker.Message{Payload: p.Encode(), Props: broker.Properties{
			ResponseTopic: "v1/nodes/" + node + "/history/answers/1", Correlation: correlation,
		}}))
		require.Eventually(r.t, func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, m := range r.answers {
				if string(m.Props.Correlation) == string(correlation) && m.Topic == "v1/nodes/"+node+"/history/answers/1" {
					return json.Unmarshal(m.Payload, &w) == nil
				}
			}
			return false
		}, 20*time.Second, time.Millisecond)
		r.mu.Lock()
		r.answers = nil
		r.mu.Unlock()
	}
}

// recordedNode is a node's history, which has values of some hours.
func (r *hubRig) recordedNode(uid string) *history.Store {
	begin := r.now.Add(-5 * time.Hour)
	at := begin
	s, err := history.Open(history.Options{Dir: r.t.TempDir(), Bytes: 64 << 20, Log: zerolog.Nop(), Now: func() time.Time { return at }})
	require.NoError(r.t, err)
	for ; at.Before(r.now); at = at.Add(time.Minute) {
		s.Record(history.SeriesKey{Device: uid, Property: "power"}, meterModel.Spec.Properties[0], strconv.Itoa(int(at.Sub(begin)/time.Minute)), at.UnixMilli(), 0)
		s.Flush()
	}
	return s
}

func (r *hubRig) read(node, uid string) resource.HistoryAnswer {
	a, err := r.Of(node).Read(context.Background(), history.Query{SeriesKey: history.SeriesKey{Device: uid, Property: "power"}, To: r.now.UnixMilli(), Points: 1000})
	require.NoError(r.t, err)
	return a
}

func (r *hubRig) pruneNow() {
	require.True(r.t, r.rules.Changed(context.Background()))
	require.NoError(r.t, r.prune(context.Background()))
}

// A Device's past is that which its own node has sent, whatever another one says of it.
func TestEachNodesCopyIsItsOwn(t *testing.T) {
	r := newHubRig(t)
	r.send("n1", r.recordedNode("u1"))
	want := r.read("n1", "u1")
	require.GreaterOrEqual(t, len(want.Times), 300)
	r.send("n2", r.recordedNode("u1"))
	require.Equal(t, want, r.read("n1", "u1"))
	require.Empty(t, r.read("n3", "u1").Times)
	r.open()
	require.Equal(t, want, r.read("n1", "u1"), "after a restart, too")
}

func TestWhatIsNoPartOfAHistoryIsRefusedOrPassedOn(t *testing.T) {
	r := newHubRig(t)
	answers := broker.Properties{ResponseTopic: "v1/nodes/n1/history/answers/1"}
	require.ErrorContains(t, r.publish("n1", broker.Message{Payload: make([]byte, maxPart+1), Props: answers}), "a part of a history has at most")
	require.ErrorContains(t, r.publish("n2", broker.Message{Payload: []byte("{}\n"), Props: answers}), "it must be v1/nodes/n2/history/answers/{request}")
	require.Error(t, r.publish("n1", broker.Message{Payload: []byte("no line of JSON"), Props: answers}))
	require.Empty(t, r.list())
	r.Publish(broker.Message{Topic: "v1/nodes/n1/devices/d/reported/history/copy"}, func(error) {})
	r.Publish(broker.Message{Topic: "board/n1"}, func(error) {})
	require.Equal(t, []string{"v1/nodes/n1/devices/d/reported/history/copy", "board/n1"}, r.tree.topics)
}

// TestWhatIsDeletedOfADeviceIsGoneFromItsNodesCopy: what it says itself at once, a Device or a Node that there is no more after a day.
func TestWhatIsDeletedOfADeviceIsGoneFromItsNodesCopy(t *testing.T) {
	r := newHubRig(t)
	r.send("n1", r.recordedNode("u1"))
	half := r.now.Add(-150 * time.Minute)
	r.bind("u1", "n1", &resource.DeviceHistory{NotBefore: resource.FormatTime(half)})
	r.pruneNow()
	require.GreaterOrEqual(t, r.read("n1", "u1").Times[0], half.Add(-time.Hour).UnixMilli(), "but for the log of the last hour, which only isn't served")
	delete(r.objects, store.Key{Kind: resource.KindDevice, Namespace: "default", Name: "u1"})
	r.pruneNow()
	require.NotEmpty(t, r.read("n1", "u1").Times, "it may be a mistake")
	r.now = r.now.Add(25 * time.Hour)
	r.pruneNow()
	require.Zero(t, r.stats().Files)

	r.send("n2", r.recordedNode("u2"))
	delete(r.objects, store.Key{Kind: resource.KindNode, Name: "n2"})
	r.now = r.now.Add(2 * time.Hour)
	r.pruneNow()
	require.DirExists(t, r.dir+"/history/n2")
	r.now = r.now.Add(25 * time.Hour)
	r.pruneNow()
	_, err := os.Stat(filepath.Join(r.dir, history.DirName, "n2"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Empty(t, r.read("n2", "u2").Times)
}

// TestAFullDiskTakesNoHistory: nodes send it again when there is room.
func TestAFullDiskTakesNoHistory(t *testing.T) {
	r := newHubRig(t)
	r.SetLowSpace("3 % of the disk is free")
	s := r.recordedNode("u1")
	p, _, err := s.NextPart(history.WantedPart{}, 1<<10)
	require.NoError(t, err)
	require.NoError(t, r.publish("n1", broker.Message{Payload: p.Encode(), Props: broker.Properties{ResponseTopic: "v1/nodes/n1/history/answers/1"}}))
	r.SetLowSpace("")
	r.send("n1", s)
	require.GreaterOrEqual(t, len(r.read("n1", "u1").Times), 300)
}
