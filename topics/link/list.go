package link

// node is an entry in the owner's order. While a FULL is being sent, which holds
// them, its entry is not modified: a write makes a new node.
type node struct {
	Entry
	prev, next *node
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
