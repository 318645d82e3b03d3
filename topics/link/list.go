package link

import "bytes"

// node is an entry in the owner's order. While a FULL is being sent, which holds
// them, its entry is not modified: a write makes a new node.
type node struct {
	Entry             // of its value what comes before tail
	tail       string // the end of the value, which others share
	prev, next *node
}

// keep takes an entry whose value ends in tail.
func (n *node) keep(e Entry, tail string) {
	n.Entry, n.tail = e, tail
	if tail != "" {
		n.Value = bytes.Clone(e.Value[:len(e.Value)-len(tail)])
	}
}

// entry is the whole of it.
func (n *node) entry() Entry {
	e := n.Entry
	if n.tail != "" {
		e.Value = append(append(make([]byte, 0, len(e.Value)+len(n.tail)), e.Value...), n.tail...)
	}
	return e
}

func (n *node) hash() sum {
	e := n.entry()
	return e.hash()
}

func (n *node) weight() int { return n.Entry.weight() + len(n.tail) }
func (n *node) size() int   { return n.Entry.size() + len(n.tail) }

// has says whether a value is the entry's.
func (n *node) has(value []byte) bool {
	head := len(value) - len(n.tail)
	return head >= 0 && string(value[head:]) == n.tail && bytes.Equal(value[:head], n.Value)
}

// list holds an owner's nodes by rising seq. It is the outbox: everything from
// the first node that is not acknowledged to the tail is still to be told.
type list struct {
	head, tail *node
	len        int
}

func (l *list) push(n *node) {
	n.prev, n.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = n
	} else {
		l.head = n
	}
	l.tail = n
	l.len++
}

func (l *list) remove(n *node) {
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		l.head = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		l.tail = n.prev
	}
	n.prev, n.next = nil, nil // a node that is still held must not hold the others
	l.len--
}
