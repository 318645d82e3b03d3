package link

import "time"

const (
	leastWindow = 4 << 10         // bytes on their way, over the slowest line; also the smallest part
	firstWindow = 2 * leastWindow // until the line is known
	mostPart    = MaxPart / 2     // over a fast line
	mostHeld    = 2 << 20         // bytes of messages that were taken from a queue and wait
	mostWaiting = 1024            // of these messages
	// An answer that comes so much later than the quickest one shows that the line has room, or that too much is on its way.
	quickAnswer = 250 * time.Millisecond
	lateAnswer  = 4 * quickAnswer
)

// Pace is how many bytes may be on their way over a line. It grows while answers are quick and shrinks when they are late, so that what is
// small, and a node's state, waits for seconds only behind what was sent before it.
type Pace struct {
	window, most int
	quickest     time.Duration // answer over this connection
	shrunk       time.Time
}

// NewPace begins with a line that is not known, on which at most so many bytes are ever on their way.
func NewPace(most int) Pace { return Pace{window: min(firstWindow, most), most: most} }

// Window is how many bytes may be on their way now.
func (p *Pace) Window() int { return p.window }

// Answered notes that the other side has answered a message of n bytes that was sent at the given time.
func (p *Pace) Answered(n int, sent, now time.Time) {
	took := now.Sub(sent)
	if p.quickest == 0 || took < p.quickest {
		p.quickest = took
	}
	switch queued := took - p.quickest; {
	case queued < quickAnswer:
		p.window = min(p.window+n, p.most)
	case queued > lateAnswer && sent.After(p.shrunk):
		p.window, p.shrunk = max(p.window/2, leastWindow), now
	}
}

// Large reports whether a message of n bytes would keep others waiting for too long.
func (p *Pace) Large(n int) bool { return n > max(p.window, firstWindow) }

// PartSize is how much of a large message goes at once.
func (p *Pace) PartSize() int { return min(max(p.window/4, leastWindow), mostPart) }

// Turns says what goes next over a line on which large messages go in parts: between two parts others go that are together as large as one.
// Those of the topic of a message that waits, wait behind it: order is kept by topic.
type Turns[M any] struct {
	Pace

	held      []held[M] // oldest first
	heldBytes int
	sincePart int // bytes of others that were sent since the last part
}

// held is a message that waits for its turn: it is large, or of the topic of one before it that waits.
type held[M any] struct {
	m     M
	topic string
	size  int
}

// Hold adds a message to those that wait if it is large, or of the topic of one that waits. Otherwise it is to be sent now.
func (t *Turns[M]) Hold(m M, topic string, size int, large bool) (waits bool) {
	waits = large
	for i := range t.held {
		waits = waits || t.held[i].topic == topic
	}
	if !waits {
		t.sincePart += size
		return false
	}
	t.held = append(t.held, held[M]{m, topic, size})
	t.heldBytes += size
	return true
}

// First is the message whose turn it is, of those that wait.
func (t *Turns[M]) First() (m M, ok bool) {
	if len(t.held) == 0 {
		return m, false
	}
	return t.held[0].m, true
}

// PartDue reports whether it is a part's turn.
func (t *Turns[M]) PartDue() bool { return len(t.held) > 0 && t.sincePart >= t.PartSize() }

// Full reports whether no more may be taken from the queue.
func (t *Turns[M]) Full() bool { return t.heldBytes >= mostHeld || len(t.held) >= mostWaiting }

// PartSent notes that a part was sent.
func (t *Turns[M]) PartSent() { t.sincePart = 0 }

// Done ends the wait of the first message.
func (t *Turns[M]) Done() {
	t.heldBytes -= t.held[0].size
	t.held[0] = held[M]{}
	t.held = t.held[1:]
}
