// SPDX-License-Identifier: Apache-2.0

package link

import "time"

const (
	minWindow          = 4 << 10       // bytes on their way, over the slowest line; also the smallest part
	firstWindow        = 2 * minWindow // until the line is known
	maxPartSize        = MaxPart / 2   // over a fast line
	maxWaitingBytes    = 2 << 20       // bytes of messages that were taken from a queue and wait
	maxWaitingMessages = 1024          // of these messages
	// An answer that comes so much later than the quickest one shows that the line has room, or that too much is on its way.
	quickAnswer = 250 * time.Millisecond
	lateAnswer  = 4 * quickAnswer
)

// LinePace is how many bytes may be on their way over a line. It grows while answers are quick and shrinks when they are late, so that what is
// small, and a node's state, waits for seconds only behind what was sent before it.
type LinePace struct {
	window, most int
	quickest     time.Duration // answer over this connection
	shrunk       time.Time
}

// NewLinePace begins with a line that is not known, on which at most so many bytes are ever on their way.
func NewLinePace(most int) LinePace { return LinePace{window: min(firstWindow, most), most: most} }

// Window is how many bytes may be on their way now.
func (p *LinePace) Window() int { return p.window }

// Answered notes that the other side has answered a message of n bytes that was sent at the given time.
func (p *LinePace) Answered(n int, sent, now time.Time) {
	took := now.Sub(sent)
	if p.quickest == 0 || took < p.quickest {
		p.quickest = took
	}
	switch queued := took - p.quickest; {
	case queued < quickAnswer:
		p.window = min(p.window+n, p.most)
	case queued > lateAnswer && sent.After(p.shrunk):
		p.window, p.shrunk = max(p.window/2, minWindow), now
	}
}

// Large reports whether a message of n bytes would keep others waiting for too long.
func (p *LinePace) Large(n int) bool { return n > max(p.window, firstWindow) }

// PartSize is how much of a large message goes at once.
func (p *LinePace) PartSize() int { return min(max(p.window/4, minWindow), maxPartSize) }

// PartTurns says what goes next over a line on which large messages go in parts: between two parts others go that are together as large as one.
// Those of the topic of a message that waits, wait behind it: order is kept by topic.
type PartTurns[M any] struct {
	LinePace

	waiting      []waitingMessage[M] // oldest first
	waitingBytes int
	sincePart    int // bytes of others that were sent since the last part
}

// waitingMessage is a message that waits for its turn: it is large, or of the topic of one before it that waits.
type waitingMessage[M any] struct {
	m     M
	topic string
	size  int
}

// Hold adds a message to those that wait if it is large, or of the topic of one that waits. Otherwise it is to be sent now.
func (t *PartTurns[M]) Hold(m M, topic string, size int, large bool) (waits bool) {
	waits = large
	for i := range t.waiting {
		waits = waits || t.waiting[i].topic == topic
	}
	if !waits {
		t.sincePart += size
		return false
	}
	t.waiting = append(t.waiting, waitingMessage[M]{m, topic, size})
	t.waitingBytes += size
	return true
}

// First is the message whose turn it is, of those that wait.
func (t *PartTurns[M]) First() (m M, ok bool) {
	if len(t.waiting) == 0 {
		return m, false
	}
	return t.waiting[0].m, true
}

// PartDue reports whether it is a part's turn.
func (t *PartTurns[M]) PartDue() bool { return len(t.waiting) > 0 && t.sincePart >= t.PartSize() }

// Full reports whether no more may be taken from the queue.
func (t *PartTurns[M]) Full() bool {
	return t.waitingBytes >= maxWaitingBytes || len(t.waiting) >= maxWaitingMessages
}

// PartSent notes that a part was sent.
func (t *PartTurns[M]) PartSent() { t.sincePart = 0 }

// Done ends the wait of the first message.
func (t *PartTurns[M]) Done() {
	t.waitingBytes -= t.waiting[0].size
	t.waiting[0] = waitingMessage[M]{}
	t.waiting = t.waiting[1:]
}
