package session

import "sync/atomic"

// Budget bounds what all sessions hold together: messages that wait, and those that were sent and
// not acknowledged. Once it is used up, a session that has more than an equal share takes no
// more, and the others go on up to theirs, or with one message of any size, until all hold twice
// the budget. A nil Budget bounds nothing.
type Budget struct {
	most, share int64
	held        atomic.Int64
}

// NewBudget makes one of so many bytes, for at most so many sessions.
func NewBudget(bytes, sessions int) *Budget {
	return &Budget{most: int64(bytes), share: int64(bytes / max(1, sessions))}
}

// Held is how many bytes all sessions hold.
func (b *Budget) Held() int64 { return b.held.Load() }

func (b *Budget) add(bytes int) {
	if b != nil {
		b.held.Add(int64(bytes))
	}
}

// spent says whether a session that holds so many bytes has to go without more.
func (b *Budget) spent(holds, more int) bool {
	if b == nil {
		return false
	}
	all := b.held.Load() + int64(more)
	return all > 2*b.most || all > b.most && holds > 0 && int64(holds+more) > b.share
}
