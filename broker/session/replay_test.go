package session

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// found is a puller that finds these once.
func found(list ...*Message) RetainedReader {
	return func(int) []*Message {
		out := list
		list = nil
		return out
	}
}

// sent is all that the session sends, until nothing is left to be fetched.
func sent(t *testing.T, s *Session, w *Writer) (all []string) {
	t.Helper()
	for more := true; more; {
		for _, pk := range decode(t, s.drain(w, nil, writeBytes), 5) {
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

func owing(l Limits) (*Session, *Writer) {
	s := New(l, time.Now, &Counters{})
	w := attached(s, ConnParams{Version: 5})
	s.OweRetained("#", 0, Delivery{QoS: 1})
	return s, w
}

func TestNothingIsFetchedBeforeItIsKnownWhere(t *testing.T) {
	s, w := owing(limits)
	s.OweRetained("other", 0, Delivery{})
	s.StartReplay("other", found(message("b", "other's", 0)))
	require.Equal(t, []string{"other's retained"}, sent(t, s, w), "another doesn't wait for it")
	s.StartReplay("#", found(message("a", "x", 0)))
	require.Equal(t, []string{"x retained"}, sent(t, s, w))
}

// What came live since a subscription was made isn't sent again as retained, however
// late that is fetched; and what was sent before that is.
func TestWhatCameLiveIsNotPulled(t *testing.T) {
	s, w := owing(limits)
	live := func(topic, payload string) *Message {
		m := message(topic, payload, 0)
		s.Enqueue(m, Delivery{})
		return m
	}
	a := live("a", "live")
	require.Equal(t, []string{"live"}, sent(t, s, w))
	s.OweRetained("a", 0, Delivery{})
	s.StartReplay("a", found(a))
	s.StartReplay("#", found(a, message("b", "kept", 0)))
	require.Equal(t, []string{"kept retained", "live retained"}, sent(t, s, w))
	require.Nil(t, s.live.last)
}

func TestPulledLosesAgainstLive(t *testing.T) {
	s, w := owing(limits)
	calls := 0
	s.StartReplay("#", func(int) []*Message {
		if calls++; calls > 1 {
			return nil
		}
		old := []*Message{message("a", "old", 1), message("b", "only", 1)}
		s.Enqueue(message("a", "new", 1), Delivery{QoS: 1})
		require.Empty(t, s.drain(w, nil, writeBytes), "not before it is known what was pulled")
		return old
	})
	require.Equal(t, []string{"new", "only retained"}, sent(t, s, w))
}

// A live message that was dropped leaves its topic to the retained one, unless that was
// fetched before: then it may be older than what came.
func TestWhatWasDroppedIsPulled(t *testing.T) {
	for name, drop := range map[string]func(*Session, *Writer){
		"no room": func(s *Session, _ *Writer) {
			s.Enqueue(message("full", "first", 0), Delivery{})
			require.Equal(t, NoRoom, s.Enqueue(message("a", "2", 0), Delivery{}))
		},
		"gave way": func(s *Session, _ *Writer) {
			s.Enqueue(message("a", "2", 0), Delivery{})
			s.Enqueue(message("full", "first", 1), Delivery{QoS: 1})
		},
		"away": func(s *Session, w *Writer) {
			s.Detach(w)
			s.Enqueue(message("a", "2", 0), Delivery{})
			s.Attach(w, ConnParams{Version: 5})
			s.Enqueue(message("full", "first", 1), Delivery{QoS: 1})
		},
		"queued when it went": func(s *Session, w *Writer) {
			s.Enqueue(message("a", "2", 0), Delivery{})
			s.Detach(w)
			s.Attach(w, ConnParams{Version: 5})
			s.Enqueue(message("full", "first", 1), Delivery{QoS: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := limits
			l.Bytes = 1
			s, w := owing(l)
			s.Enqueue(message("a", "1", 0), Delivery{})
			require.Equal(t, []string{"1"}, sent(t, s, w))
			drop(s, w)
			s.StartReplay("#", found(message("a", "2", 0)))
			require.Equal(t, []string{"first", "2 retained"}, sent(t, s, w))
		})
	}
	l := limits
	l.Bytes = 1
	s, w := owing(l)
	s.StartReplay("#", func(int) []*Message {
		if s.live.last != nil {
			return nil
		}
		s.Enqueue(message("a", "2", 0), Delivery{})
		require.Equal(t, NoRoom, s.Enqueue(message("a", "3", 0), Delivery{}))
		return []*Message{message("a", "1", 0)}
	})
	require.Equal(t, []string{"2"}, sent(t, s, w))
}

func TestArrivalsAreBounded(t *testing.T) {
	s, w := owing(limits)
	for i := range maxLiveTopics + 10 {
		s.Enqueue(message(fmt.Sprint(i), "x", 0), Delivery{})
		s.drain(w, nil, writeBytes)
	}
	require.Len(t, s.live.last, maxLiveTopics)
	last := fmt.Sprint(maxLiveTopics + 9)
	fetched := false
	s.StartReplay("#", func(int) []*Message {
		if fetched {
			return nil
		}
		fetched = true
		s.Enqueue(message(last, "new", 0), Delivery{})
		return []*Message{message(last, "old", 0)}
	})
	require.Equal(t, []string{"new"}, sent(t, s, w), "what comes during a fetch is known")
	require.Nil(t, s.live.last)
}
