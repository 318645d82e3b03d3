// SPDX-License-Identifier: Apache-2.0

// Package backoff says how long to wait before something that failed is tried again: who tries has the clock.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is the wait between attempts: it doubles from Min to Max.
type Backoff struct{ Min, Max time.Duration }

// Wait is the wait before the next attempt, after one that failed and n others that had failed just before it.
func (b Backoff) Wait(n int) time.Duration {
	d := b.Min
	for ; n > 0 && d < b.Max; n-- {
		if d > b.Max/2 {
			return b.Max
		}
		d *= 2
	}
	return min(d, b.Max)
}

// Spread is Wait less a random part of up to half of it, so that a thousand that failed together don't try again at the same moment.
func (b Backoff) Spread(n int) time.Duration {
	d := b.Wait(n)
	return d - rand.N(d/2+1) //nolint:gosec // G404: spreads attempts
}

// Retry is one thing that is tried until it succeeds, with the time when it is due again. The zero value is due.
type Retry struct {
	failures int
	due      time.Time
}

// Failed plans the next attempt, and returns the wait until then.
func (r *Retry) Failed(b Backoff, now time.Time) time.Duration {
	wait := b.Wait(r.failures)
	r.failures++
	r.due = now.Add(wait)
	return wait
}

// Succeeded begins anew: the next failure is the first.
func (r *Retry) Succeeded() { *r = Retry{} }

// Failures is how many attempts have failed since the last success.
func (r *Retry) Failures() int { return r.failures }

// Due is when the next attempt is due; zero: now.
func (r *Retry) Due() time.Time { return r.due }

// Left is how long it is until the next attempt, and never longer than the wait that was planned, since the clock may have been set back.
func (r *Retry) Left(b Backoff, now time.Time) time.Duration {
	if r.failures == 0 {
		return 0
	}
	return max(min(r.due.Sub(now), b.Wait(r.failures-1)), 0)
}

// Sleep waits, and returns false if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
