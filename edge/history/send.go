// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"encoding/json"
	"time"

	"github.com/edgebus/edgebus/broker/history"
	"github.com/edgebus/edgebus/topics/backoff"
)

const (
	firstPart     = 4 << 10 // bytes
	largestPart   = 64 << 10
	quickAnswer   = 250 * time.Millisecond // after which parts become larger
	slowAnswer    = time.Second            // after which they become smaller: state must not wait for them
	answerTimeout = 30 * time.Second
	lookInterval  = 5 * time.Second
	smallPart     = 1 << 10         // bytes that are not sent by themselves
	smallWait     = 5 * time.Minute // until they are all the same
	offWait       = time.Hour       // until a hub without copies is asked again
)

// Budget is the part of the link's rate that is left when state was sent.
type Budget interface {
	Wait() time.Duration
	Download(n int)
}

// CopySender is one connection's.
type CopySender struct {
	// Publish sends a part to the hub.
	Publish func(payload []byte)
	Budget  Budget
	answers chan history.WantedPart
}

// NewSending makes the sender of a connection.
func NewSending(publish func([]byte), budget Budget) *CopySender {
	return &CopySender{Publish: publish, Budget: budget, answers: make(chan history.WantedPart, 1)}
}

// Received takes an answer of the hub.
func (s *CopySender) Received(payload []byte) {
	var w history.WantedPart
	if json.Unmarshal(payload, &w) != nil {
		return // it is asked again
	}
	select {
	case s.answers <- w:
	default: // it was late, and the next one says more
	}
}

// Send sends the hub what its copy lacks, one part after the other, until ctx ends.
func (h *Recorder) Send(ctx context.Context, s *CopySender) {
	var wanted history.WantedPart
	size, lastSent := firstPart, time.Time{}
	for ctx.Err() == nil {
		p, ok, err := h.shared.NextPart(wanted, size)
		small := !p.File && len(p.Bytes) > 0 && len(p.Bytes) < smallPart && time.Since(lastSent) < smallWait
		switch wait := s.Budget.Wait(); {
		case err != nil:
			h.o.Log.Warn().Err(err).Msg("a part of the history can't be read, and is not sent to the hub")
			backoff.Sleep(ctx, answerTimeout)
			wanted = history.WantedPart{}
			continue
		case !ok, small:
			backoff.Sleep(ctx, lookInterval)
			continue
		case wait > 0:
			backoff.Sleep(ctx, min(wait, lookInterval))
			continue
		}
		payload := p.Encode()
		s.Budget.Download(len(payload))
		began := time.Now()
		s.Publish(payload)
		wanted = s.await(ctx)
		if wanted.Off {
			backoff.Sleep(ctx, offWait)
			wanted = history.WantedPart{}
		}
		if len(p.Bytes) > 0 {
			lastSent = time.Now()
		}
		switch took := time.Since(began); {
		case took < quickAnswer:
			size = min(2*size, largestPart)
		case took > slowAnswer:
			size = max(size/2, smallPart)
		}
	}
}

// await is the hub's answer; none in time: it is asked what it wants.
func (s *CopySender) await(ctx context.Context) history.WantedPart {
	timer := time.NewTimer(answerTimeout)
	defer timer.Stop()
	select {
	case w := <-s.answers:
		return w
	case <-timer.C:
	case <-ctx.Done():
	}
	return history.WantedPart{}
}
