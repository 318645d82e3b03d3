// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// scheduleModel is one state of a small world, all of whose schedules are tried: two
// keys, one entry a message, commits at once, and a budget for each fault.
type scheduleModel struct {
	o        *Owner
	r        *Replica
	o2r, r2o []Message
	nonce    *uint64
	mark     MapState
	n        uint64
	budget   faultBudget
	path     []string
}

type faultBudget struct{ writes, loss, dup, swap, connect, resend, rollback int }

func newScheduleModel(b faultBudget) *scheduleModel {
	m := &scheduleModel{r: NewReplica(Up), nonce: new(uint64), budget: b}
	m.o = NewOwner(Up, m.draw)
	m.o.limits = sendLimits{bytes: 1 << 10, entries: 1, window: 2}
	m.connect()
	return m.settle()
}

func (m *scheduleModel) draw() uint64 { *m.nonce++; return *m.nonce << 1 }

func (m *scheduleModel) connect() { m.n++; m.o.Connect(m.n) }

// settle commits and sends, which is no choice in this model.
func (m *scheduleModel) settle() *scheduleModel {
	m.o.TakeChanges()
	m.r.TakeChanges()
	m.o2r = append(m.o2r, m.o.Messages()...)
	m.r2o = append(m.r2o, m.r.Messages()...)
	return m
}

func (m *scheduleModel) clone(step string) *scheduleModel {
	c := &scheduleModel{n: m.n, mark: m.mark, budget: m.budget, nonce: new(uint64)}
	*c.nonce = *m.nonce
	c.o2r, c.r2o = slices.Clone(m.o2r), slices.Clone(m.r2o)
	c.path = append(slices.Clip(m.path), step)
	c.o, c.r = m.o.clone(c.draw), m.r.clone()
	return c
}

// clone copies an owner with its conversation. Nodes are copied because they
// are linked; those of a FULL are the same entries, which nobody modifies.
func (o *Owner) clone(rand func() uint64) *Owner {
	c := *o
	c.rand, c.keys, c.order, c.sorted = rand, map[string]*ownerEntry{}, ownerEntryList{}, o.sorted.clone()
	c.unacked, c.connection.next = nil, nil
	c.connection.inflight = slices.Clone(o.connection.inflight)
	if o.connection.full != nil {
		f := *o.connection.full
		c.connection.full = &f
	}
	c.changes.at, c.changes.entries = maps.Clone(o.changes.at), slices.Clone(o.changes.entries)
	for n := o.order.head; n != nil; n = n.next {
		k := &ownerEntry{Entry: n.Entry}
		c.keys[k.Key] = k
		c.order.push(k)
		if n == o.unacked {
			c.unacked = k
		}
		if n == o.connection.next {
			c.connection.next = k
		}
	}
	return &c
}

func (r *Replica) clone() *Replica {
	c := *r
	c.table, c.changes.at, c.changes.entries = r.table.clone(), maps.Clone(r.changes.at), slices.Clone(r.changes.entries)
	if r.partial != nil {
		g := *r.partial
		g.table = g.table.clone()
		c.partial = &g
	}
	return &c
}

func (t keyTable) clone() keyTable {
	t.blocks = slices.Clone(t.blocks)
	for i := range t.blocks {
		t.blocks[i] = bytes.Clone(t.blocks[i])
	}
	return t
}

// print identifies a state: all that what happens next can depend on.
func (m *scheduleModel) print() string {
	var b bytes.Buffer
	o, t := m.o, m.o.connection
	fmt.Fprint(&b, m.budget, *m.nonce, m.n, m.mark, o.state(), t.phase, t.announced, t.inStep, t.sentUpto, t.offer.upto)
	for n := o.order.head; n != nil; n = n.next {
		fmt.Fprint(&b, n.Entry, n == o.unacked, n == t.next)
	}
	for _, c := range t.inflight {
		fmt.Fprint(&b, c.upto, c.digest)
	}
	if f := t.full; f != nil {
		fmt.Fprint(&b, f.id, f.upto, f.digest, f.sent, f.held, f.partEnds)
	}
	m.r.Range("", func(e Entry) bool { fmt.Fprint(&b, e); return true })
	fmt.Fprint(&b, m.r.lineage, m.r.applied, m.r.n, m.r.seenDue)
	if g := m.r.partial; g != nil {
		fmt.Fprint(&b, *g)
	}
	for _, q := range [][]Message{m.o2r, m.r2o} {
		for _, x := range q {
			d := x.Digest
			x.Digest = nil
			fmt.Fprint(&b, x, d)
		}
		b.WriteByte('|')
	}
	return b.String()
}

// next lists every state that one step leads to.
func (m *scheduleModel) next() (out []*scheduleModel) {
	try := func(left int, spend func(*faultBudget), step string, do func(*scheduleModel)) {
		if left > 0 {
			c := m.clone(step)
			spend(&c.budget)
			do(c)
			out = append(out, c.settle())
		}
	}
	for _, k := range []string{"a", "b"} {
		write := func(b *faultBudget) { b.writes-- }
		try(m.budget.writes, write, "put "+k, func(c *scheduleModel) { _, _, _ = c.o.Put(Entry{Key: k, Value: []byte("v")}); c.again(k) })
		if _, live := m.o.Get(k); live {
			try(m.budget.writes, write, "delete "+k, func(c *scheduleModel) { c.o.Delete(k, 0, "") })
		}
	}
	try(m.budget.connect, func(b *faultBudget) { b.connect-- }, "connect", (*scheduleModel).connect)
	if m.o.Waiting() {
		try(m.budget.resend, func(b *faultBudget) { b.resend-- }, "resend", func(c *scheduleModel) { c.o.Resend() })
	}
	try(m.budget.rollback, func(b *faultBudget) { b.rollback-- }, "roll replica back", (*scheduleModel).rollback)
	for _, down := range []bool{true, false} {
		q := m.queue(down)
		try(len(*q), func(*faultBudget) {}, "deliver", func(c *scheduleModel) { c.deliver(down, 0, false) })
		try(min(len(*q), m.budget.loss), func(b *faultBudget) { b.loss-- }, "lose", func(c *scheduleModel) { x := c.queue(down); *x = (*x)[1:] })
		try(min(len(*q), m.budget.dup), func(b *faultBudget) { b.dup-- }, "double", func(c *scheduleModel) { c.deliver(down, 0, true) })
		try(min(len(*q)-1, m.budget.swap), func(b *faultBudget) { b.swap-- }, "overtake", func(c *scheduleModel) { c.deliver(down, 1, false) })
	}
	return out
}

// again makes a Put of what is there a write, by its version.
func (m *scheduleModel) again(key string) {
	if n := m.o.keys[key]; n != nil && n.Seq <= m.o.acked {
		_, _, _ = m.o.Put(Entry{Key: key, Value: []byte("w"), Ver: n.Ver + 1})
	}
}

// rollback empties the replica: its disk was replaced.
func (m *scheduleModel) rollback() {
	m.r, m.mark = NewReplica(Up), MapState{}
	m.connect()
}

func (m *scheduleModel) queue(down bool) *[]Message {
	if down {
		return &m.o2r
	}
	return &m.r2o
}

func (m *scheduleModel) deliver(down bool, i int, keep bool) {
	q := m.queue(down)
	x := (*q)[i]
	if !keep {
		*q = slices.Delete(slices.Clone(*q), i, i+1)
	}
	if down {
		m.r.Step(x)
	} else if err := m.o.Step(x); err != nil {
		panic(err)
	}
}

// check is I1, I3 and I5 of this state.
func (m *scheduleModel) check() error {
	was, now := m.mark, MapState{Lineage: m.r.lineage, Applied: m.r.applied}
	m.mark = now
	if was.Lineage.after(now.Lineage) || now.Lineage == was.Lineage && now.Applied < was.Applied {
		return fmt.Errorf("I1: %v after %v", now, was)
	}
	if m.o.order.len > 2 || m.o.Dirty() > 2 {
		return fmt.Errorf("I3: %d entries, %d dirty", m.o.order.len, m.o.Dirty())
	}
	if m.o.InStep() && !maps.Equal(mapContent(m.o.Range), mapContent(m.r.Range)) {
		return fmt.Errorf("I5: %v, %v", mapContent(m.o.Range), mapContent(m.r.Range))
	}
	return nil
}

// heal is L and I2: without more faults, rest is reached, and both are equal.
func (m *scheduleModel) heal() error {
	c := m.clone("heal")
	for range 200 {
		switch {
		case len(c.o2r) > 0:
			c.deliver(true, 0, false)
		case len(c.r2o) > 0:
			c.deliver(false, 0, false)
		case c.o.Waiting():
			c.o.Resend()
		default:
			if !c.o.InStep() || !maps.Equal(mapContent(c.o.Range), mapContent(c.r.Range)) {
				return fmt.Errorf("I2: %v, %v", mapContent(c.o.Range), mapContent(c.r.Range))
			}
			return nil
		}
		c.settle()
	}
	return fmt.Errorf("L: no rest")
}

func exploreSchedules(t *testing.T, b faultBudget) int {
	start := newScheduleModel(b)
	seen := map[string]struct{}{start.print(): {}}
	for todo := []*scheduleModel{start}; len(todo) > 0; {
		m := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		require.NoError(t, m.check(), "%q", m.path)
		require.NoError(t, m.heal(), "%q", m.path)
		for _, c := range m.next() {
			require.NoError(t, c.check(), "%q", c.path)
			p := c.print()
			if _, known := seen[p]; !known {
				seen[p] = struct{}{}
				todo = append(todo, c)
			}
		}
	}
	return len(seen)
}

// TestEverySchedule tries all there are within each budget; with LINK_SCHEDULES
// set, ten times as many.
func TestEverySchedule(t *testing.T) {
	all := faultBudget{writes: 1, loss: 1, dup: 1, swap: 1, connect: 1, resend: 1}
	if os.Getenv("LINK_SCHEDULES") != "" {
		all.writes = 2
	}
	for name, b := range map[string]faultBudget{
		"loss":      {writes: 3, loss: 1, resend: 1},
		"double":    {writes: 3, dup: 1},
		"overtake":  {writes: 3, swap: 1},
		"reconnect": {writes: 3, connect: 1},
		"rollback":  {writes: 3, rollback: 1},
		"all":       all,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Log("states:", exploreSchedules(t, b))
		})
	}
}
