// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// retainedReader is a puller that finds these once.
func retainedReader(list ...*Message) RetainedReader {
	return func(int) []*Message {
		out := list
		list = nil
		return out
	}
}

// drainedPayloads is all that the session sends, until nothing is left to be fetched.
func drainedPayloads(t *testing.T, s *Session, w *Writer) (all []string) {
	t.Helper()
	for more := true; more; {
		for _, pk := range decodePackets(t, s.drain(w, nil, writeBytes), 5) {
			what := string(pk.Payload)
			if pk.FixedHeader.Retain {
				what += " retained"
			}
			all = append(all, what)
		}
		more = s.fetchRetained(w)
	}
	return all
}

func newOwingSession(l Limits) (*Session, *Writer) {
	s := New(l, time.Now, &Counters{})
	w := attachWriter(s, ConnParams{Version: 5})
	s.OweRetained("#", 0, DeliveryOptions{QoS: 1})
	return s, w
}

func TestNothingIsFetchedBeforeItIsKnownWhere(t *testing.T) {
	s, w := newOwingSession(testLimits)
	s.OweRetained("other", 0, DeliveryOptions{})
	s.StartReplay("other", retainedReader(newMessage("b", "other's", 0)))
	require.Equal(t, []string{"other's retained"}, drainedPayloads(t, s, w), "another doesn't wait for it")
	s.StartReplay("#", retainedReader(newMessage("a", "x", 0)))
	require.Equal(t, []string{"x retained"}, drainedPayloads(t, s, w))
}

// What came live since a subscription was made isn't sent again as retained, however
// late that is fetched; and what was sent before that is.
func TestWhatCameLiveIsNotPulled(t *testing.T) {
	s, w := newOwingSession(testLimits)
	live := func(topic, payload string) *Message {
		m := newMessage(topic, payload, 0)
		s.Enqueue(m, DeliveryOptions{})
		return m
	}
	a := live("a", "live")
	require.Equal(t, []string{"live"}, drainedPayloads(t, s, w))
	s.OweRetained("a", 0, DeliveryOptions{})
	s.StartReplay("a", retainedReader(a))
	s.StartReplay("#", retainedReader(a, newMessage("b", "kept", 0)))
	require.Equal(t, []string{"kept retained", "live retained"}, drainedPayloads(t, s, w))
	require.Nil(t, s.replays.topics.last)
}

func TestPulledLosesAgainstLive(t *testing.T) {
	s, w := newOwingSession(testLimits)
	calls := 0
	s.StartReplay("#", func(int) []*Message {
		if calls++; calls > 1 {
			return nil
		}
		old := []*Message{newMessage("a", "old", 1), newMessage("b", "only", 1)}
		s.Enqueue(newMessage("a", "new", 1), DeliveryOptions{QoS: 1})
		require.Empty(t, s.drain(w, nil, writeBytes), "not before it is known what was pulled")
		return old
	})
	require.Equal(t, []string{"new", "only retained"}, drainedPayloads(t, s, w))
}

// A live message that was dropped leaves its topic to the retained one, unless that was
// fetched before: then it may be older than what came.
func TestWhatWasDroppedIsPulled(t *testing.T) {
	for name, drop := range map[string]func(*Session, *Writer){
		"no room": func(s *Session, _ *Writer) {
			s.Enqueue(newMessage("full", "first", 0), DeliveryOptions{})
			require.Equal(t, EnqueueNoRoom, s.Enqueue(newMessage("a", "2", 0), DeliveryOptions{}))
		},
		"gave way": func(s *Session, _ *Writer) {
			s.Enqueue(newMessage("a", "2", 0), DeliveryOptions{})
			s.Enqueue(newMessage("full", "first", 1), DeliveryOptions{QoS: 1})
		},
		"away": func(s *Session, w *Writer) {
			s.Detach(w)
			s.Enqueue(newMessage("a", "2", 0), DeliveryOptions{})
			s.Attach(w, ConnParams{Version: 5})
			s.Enqueue(newMessage("full", "first", 1), DeliveryOptions{QoS: 1})
		},
		"queued when it went": func(s *Session, w *Writer) {
			s.Enqueue(newMessage("a", "2", 0), DeliveryOptions{})
			s.Detach(w)
			s.Attach(w, ConnParams{Version: 5})
			s.Enqueue(newMessage("full", "first", 1), DeliveryOptions{QoS: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLimits
			l.Bytes = 1
			s, w := newOwingSession(l)
			s.Enqueue(newMessage("a", "1", 0), DeliveryOptions{})
			require.Equal(t, []string{"1"}, drainedPayloads(t, s, w))
			drop(s, w)
			s.StartReplay("#", retainedReader(newMessage("a", "2", 0)))
			require.Equal(t, []string{"first", "2 retained"}, drainedPayloads(t, s, w))
		})
	}
	l := testLimits
	l.Bytes = 1
	s, w := newOwingSession(l)
	s.StartReplay("#", func(int) []*Message {
		if s.replays.topics.last != nil {
			return nil
		}
		s.Enqueue(newMessage("a", "2", 0), DeliveryOptions{})
		require.Equal(t, EnqueueNoRoom, s.Enqueue(newMessage("a", "3", 0), DeliveryOptions{}))
		return []*Message{newMessage("a", "1", 0)}
	})
	require.Equal(t, []string{"2"}, drainedPayloads(t, s, w))
}

func TestArrivalsAreBounded(t *testing.T) {
	s, w := newOwingSession(testLimits)
	for i := range maxLiveTopics + 10 {
		s.Enqueue(newMessage(fmt.Sprint(i), "x", 0), DeliveryOptions{})
		s.drain(w, nil, writeBytes)
	}
	require.Len(t, s.replays.topics.last, maxLiveTopics)
	last := fmt.Sprint(maxLiveTopics + 9)
	fetched := false
	s.StartReplay("#", func(int) []*Message {
		if fetched {
			return nil
		}
		fetched = true
		s.Enqueue(newMessage(last, "new", 0), DeliveryOptions{})
		return []*Message{newMessage(last, "old", 0)}
	})
	require.Equal(t, []string{"new"}, drainedPayloads(t, s, w), "what comes during a fetch is known")
	require.Nil(t, s.replays.topics.last)
}
