package calls

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/topics"
)

// remembered is how many ended calls are known again when they are sent again.
const remembered = 4096

// table holds the calls under way. Whoever takes a call out of it, once, answers.
type table struct {
	mu     sync.Mutex
	calls  map[string]*entry            // by id
	asked  map[string]map[string]*entry // by client that was asked, and id
	from   *quota.Quota                 // calls by client that asked
	users  *quota.Quota                 // and by its user
	keys   map[uint64]int               // keys of calls, under way and ended of late
	recent []uint64                     // keys of those that have ended, oldest first
	count  Stats
}

type entry struct {
	*call
	timer *time.Timer
	left  int // clients that were asked and are still connected
}

func newTable(l Limits) table {
	return table{
		calls: make(map[string]*entry), asked: make(map[string]map[string]*entry),
		from: quota.New("commands under way", "client", quota.Limit{Most: int64(l.Client), Setting: "limits.commands.client"}, quota.Limit{}),
		users: quota.New("commands under way", "user", quota.Limit{Most: int64(l.All+1) / 2, Setting: "half of limits.commands.all"},
			quota.Limit{Most: int64(l.All), Setting: "limits.commands.all"}),
		keys: make(map[uint64]int), count: Stats{Ended: make(map[string]int64)},
	}
}

// begin puts a call in; expire is called when its time is over.
func (t *table) begin(x *call, wait time.Duration, expire func()) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.from.Check(x.from, 1); err != nil {
		return err
	}
	if err := t.users.Take(x.user, 1); err != nil {
		return err
	}
	t.from.Add(x.from, 1)
	e := &entry{call: x, timer: time.AfterFunc(wait, expire), left: len(x.asked)}
	t.calls[x.id] = e
	for _, client := range x.asked {
		if t.asked[client] == nil {
			t.asked[client] = make(map[string]*entry)
		}
		t.asked[client][x.id] = e
	}
	return nil
}

func (t *table) find(id string) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.calls[id]; e != nil {
		return e.call
	}
	return nil
}

// end takes a call out; nil if it is not there any more.
func (t *table) end(id string) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.calls[id]
	if e == nil {
		return nil
	}
	e.timer.Stop()
	delete(t.calls, id)
	t.from.Add(e.from, -1)
	t.users.Add(e.user, -1)
	for _, client := range e.call.asked {
		delete(t.asked[client], id)
		if len(t.asked[client]) == 0 {
			delete(t.asked, client)
		}
	}
	return e.call
}

// left takes note that a client has gone, and lists the calls that nobody has now.
func (t *table) left(client string) (ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.asked[client] {
		if e.left--; e.left == 0 {
			ids = append(ids, id)
		}
	}
	delete(t.asked, client)
	slices.Sort(ids)
	return ids
}

// knows says whether a call with the key is under way, or has ended of late.
func (t *table) knows(key uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keys[key] > 0
}

// taken and settled are called once for each call: at its beginning, and at its end.
func (t *table) taken(x *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.Taken++
	if x.key != 0 {
		t.keys[x.key]++
	}
}

func (t *table) late() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.Late++
}

func (t *table) settled(x *call, code topics.Code) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(topics.Codes(), code) {
		code = Other
	}
	t.count.Ended[string(code)]++
	if x.key == 0 {
		return
	}
	if t.recent = append(t.recent, x.key); len(t.recent) > remembered {
		oldest := t.recent[0]
		t.recent = t.recent[1:]
		if t.keys[oldest]--; t.keys[oldest] == 0 {
			delete(t.keys, oldest)
		}
	}
}

func (t *table) stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.count
	s.UnderWay, s.Ended = len(t.calls), maps.Clone(s.Ended)
	return s
}
