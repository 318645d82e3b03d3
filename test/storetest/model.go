// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// storeModel is the store as a map, and what watchers must come to know.
type storeModel struct {
	env     *storeEnv
	objects map[store.Key]store.Object
	rev     uint64
	limits  Limits
	watcher *watcherMirror
}

// watcherMirror is what a watcher believes, built from a list and events alone.
type watcherMirror struct {
	stream store.Stream
	state  map[store.Key]store.Object
	rev    uint64
}

func testModel(t *testing.T, e *storeEnv) {
	e.stop()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "model")
		require.NoError(t, err)
		m := &storeModel{
			env:     &storeEnv{t: t, open: e.open, dir: dir},
			objects: map[store.Key]store.Object{},
			limits:  Limits{Tombstones: 6, WatchBuffer: 3},
		}
		m.env.start(m.limits)
		m.relist(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"create":  m.create,
			"update":  m.update,
			"delete":  m.delete,
			"read":    m.read,
			"restart": m.restart,
			"follow":  m.follow,
			"":        m.compare,
		})
		m.catchUp(rt)
		require.Equal(rt, m.objects, m.watcher.state)
		m.env.stop()
	})
}

var (
	genName = rapid.SampledFrom([]string{"a", "b", "c", "a-b", "z"})
	genNS   = rapid.SampledFrom([]string{"", "x", "y"})
	genData = rapid.SampledFrom([]string{"{1}", "{2}", "{3}"})
)

func (m *storeModel) key(t *rapid.T) store.Key {
	return store.Key{Kind: "Device", Namespace: genNS.Draw(t, "namespace"), Name: genName.Draw(t, "name")}
}

// expect draws a revision to expect: none, the right one, or another.
func (m *storeModel) expect(t *rapid.T, key store.Key) uint64 {
	return rapid.SampledFrom([]uint64{0, m.objects[key].Rev, m.objects[key].Rev + 1}).Draw(t, "expect")
}

// verdict is what the contract says of a write to what exists.
func (m *storeModel) verdict(key store.Key, expect uint64) resource.ErrorKind {
	old, ok := m.objects[key]
	switch {
	case !ok:
		return resource.NotFound
	case expect != 0 && expect != old.Rev:
		return resource.Conflict
	}
	return ""
}

func checkVerdict(t *rapid.T, err error, want resource.ErrorKind) bool {
	if want == "" {
		require.NoError(t, err)
		return true
	}
	require.Equal(t, want, resource.KindOf(err), "%v", err)
	return false
}

func (m *storeModel) wrote(t *rapid.T, o store.Object) {
	require.Greater(t, o.Rev, m.rev)
	m.rev = o.Rev
}

func (m *storeModel) create(t *rapid.T) {
	o := store.Object{Key: m.key(t), Data: []byte(genData.Draw(t, "data"))}
	got, err := m.env.Create(testContext(), o)
	want := resource.ErrorKind("")
	if _, ok := m.objects[o.Key]; ok {
		want = resource.AlreadyExists
	}
	if checkVerdict(t, err, want) {
		m.wrote(t, got)
		o.Rev = got.Rev
		require.Equal(t, o, got)
		m.objects[o.Key] = got
	}
}

func (m *storeModel) update(t *rapid.T) {
	o := store.Object{Key: m.key(t)}
	if rapid.Bool().Draw(t, "with data") {
		o.Data = []byte(genData.Draw(t, "data"))
	}
	if rapid.Bool().Draw(t, "with status") {
		o.Status = []byte(genData.Draw(t, "status"))
	}
	expect := m.expect(t, o.Key)
	got, err := m.env.Update(testContext(), o, expect)
	if !checkVerdict(t, err, m.verdict(o.Key, expect)) {
		return
	}
	want := m.objects[o.Key]
	changed := o.Data != nil && string(o.Data) != string(want.Data) ||
		o.Status != nil && string(o.Status) != string(want.Status)
	if o.Data != nil {
		want.Data = o.Data
	}
	if o.Status != nil {
		want.Status = o.Status
	}
	if changed {
		m.wrote(t, got)
		want.Rev = got.Rev
	}
	require.Equal(t, want, got)
	m.objects[o.Key] = got
}

func (m *storeModel) delete(t *rapid.T) {
	key := m.key(t)
	expect := m.expect(t, key)
	got, err := m.env.Delete(testContext(), key, expect)
	if checkVerdict(t, err, m.verdict(key, expect)) {
		m.wrote(t, got)
		delete(m.objects, key)
	}
}

func (m *storeModel) read(t *rapid.T) {
	key := m.key(t)
	got, err := m.env.Get(testContext(), key)
	if want, ok := m.objects[key]; ok {
		require.NoError(t, err)
		require.Equal(t, want, got)
		return
	}
	checkVerdict(t, err, resource.NotFound)
}

func (m *storeModel) restart(t *rapid.T) {
	m.env.restart(m.limits)
	m.rewatch(t)
}

// compare lists everything, in pages of a drawn size.
func (m *storeModel) compare(t *rapid.T) {
	opts := store.ListOptions{Namespace: genNS.Draw(t, "in"), Limit: rapid.IntRange(0, 4).Draw(t, "limit")}
	var got []store.Object
	for {
		page, err := m.env.List(testContext(), "Device", opts)
		require.NoError(t, err)
		require.Equal(t, m.rev, page.Rev)
		got = append(got, page.Items...)
		if page.More == 0 {
			break
		}
		opts.After, opts.Rev = got[len(got)-1].Key, page.Rev
	}
	var want []store.Object
	for _, key := range slices.SortedFunc(maps.Keys(m.objects), store.Key.Compare) {
		if opts.Namespace == "" || key.Namespace == opts.Namespace {
			want = append(want, m.objects[key])
		}
	}
	require.Equal(t, want, got)
}

// follow lets the watcher read once, if there is anything.
func (m *storeModel) follow(t *rapid.T) {
	if m.watcher.stream.Rev() == m.rev {
		return
	}
	events, err := m.watcher.stream.Next(testContext())
	if err != nil {
		checkVerdict(t, err, resource.Gone)
		m.relist(t)
		return
	}
	for _, event := range events {
		m.watcher.apply(t, event)
	}
}

func (w *watcherMirror) apply(t *rapid.T, event store.Event) {
	o := event.Object
	require.Greater(t, o.Rev, w.rev, "revisions rise")
	w.rev = o.Rev
	before, known := w.state[o.Key]
	if event.Old != nil {
		require.Equal(t, before, *event.Old, "what this stream last spoke of")
	}
	switch event.Type {
	case store.Deleted:
		delete(w.state, o.Key)
	case store.Added:
		require.False(t, known, "added twice: %v", o.Key)
		w.state[o.Key] = o
	default:
		require.True(t, known, "modified what was never added: %v", o.Key)
		w.state[o.Key] = o
	}
}

func (m *storeModel) catchUp(t *rapid.T) {
	for m.watcher.stream.Rev() != m.rev {
		m.follow(t)
	}
}

func (m *storeModel) relist(t *rapid.T) {
	if m.watcher != nil {
		m.watcher.stream.Close()
	}
	m.watcher = &watcherMirror{state: maps.Clone(m.objects), rev: m.rev}
	m.rewatch(t)
}

// rewatch goes on from where the watcher is, or lists again when it is told Gone.
func (m *storeModel) rewatch(t *rapid.T) {
	from := m.watcher.rev
	s, err := m.env.Watch(testContext(), store.Key{Kind: "Device"}, from)
	if err != nil {
		checkVerdict(t, err, resource.Gone)
		require.NotEqual(t, m.rev, from, fmt.Sprint("Gone at the newest revision ", from))
		m.relist(t)
		return
	}
	m.watcher.stream = s
}
