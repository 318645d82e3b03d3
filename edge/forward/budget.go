package forward

import (
	"sync"
	"time"
)

// Budget is what a metered link may cost: so many bytes a second, of which state takes
// what it needs, and streams what is left. Its methods may be called of nil, which is
// no limit.
type Budget struct {
	rate float64
	now  func() time.Time

	mu    sync.Mutex
	left  float64 // less than 0: owed
	at    time.Time
	stats BudgetStats
}

// BudgetStats are counts since the start, for metrics.
type BudgetStats struct {
	State, Streams int64         // bytes sent
	Held           time.Duration // that streams waited for the budget
}

// NewBudget makes a budget; with a rate of 0 it only counts.
func NewBudget(rate int64, now func() time.Time) *Budget {
	return &Budget{rate: float64(rate), left: float64(rate), at: now(), now: now}
}

// State counts what is sent whatever the budget says.
func (b *Budget) State(n int) {
	if b != nil {
		b.spend(n, &b.stats.State)
	}
}

func (b *Budget) stream(n int) {
	if b != nil {
		b.spend(n, &b.stats.Streams)
	}
}

func (b *Budget) spend(n int, count *int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill()
	b.left -= float64(n)
	*count += int64(n)
}

// fill adds what has come since: at most what a second gives is kept for later.
func (b *Budget) fill() {
	now := b.now()
	if d := now.Sub(b.at); d > 0 {
		b.left = min(b.left+d.Seconds()*b.rate, b.rate)
	}
	b.at = now
}

// wait says how long it is until streams may send.
func (b *Budget) wait() time.Duration {
	if b == nil || b.rate == 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fill(); b.left > 0 {
		return 0
	}
	return time.Duration((-b.left/b.rate)*float64(time.Second)) + time.Millisecond
}

func (b *Budget) held(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Held += d
}

// Stats takes a snapshot.
func (b *Budget) Stats() BudgetStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}
