// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newQueue[B any](limit int) *queue[B] {
	q := new(queue[B])
	q.init(limit)
	return q
}

func ranLess(n int) func(int, int) bool { return func(ran, _ int) bool { return ran < n } }

// stepBytes is the room that n steps without a message need.
func stepBytes(n int) int { return n * stepCost }

func TestStepsRunInOrder(t *testing.T) {
	q := newQueue[*[]int](stepBytes(10))
	for i := range 5 {
		require.True(t, q.Put("a", 0, func(b *[]int) { *b = append(*b, i) }))
	}
	<-q.ready
	var got []int
	require.Equal(t, 3, q.run(&got, ranLess(3)))
	require.Equal(t, []int{0, 1, 2}, got)
	<-q.ready // what is left is announced again
	require.Equal(t, 2, q.run(&got, ranLess(3)))
	require.Equal(t, []int{0, 1, 2, 3, 4}, got)
	require.Zero(t, q.Len())
}

// What comes while a batch is made is part of it: fewer commits for more steps.
func TestStepsThatComeMeanwhileAreRunToo(t *testing.T) {
	q := newQueue[int](stepBytes(10))
	var ran []string
	require.True(t, q.Put("a", 0, func(int) {
		ran = append(ran, "first")
		require.True(t, q.Put("a", 0, func(int) { ran = append(ran, "second") })) // there is room
	}))
	require.Equal(t, 2, q.run(0, ranLess(10)))
	require.Equal(t, []string{"first", "second"}, ran)
}

func TestPutBlocksWhileTheQueueIsFull(t *testing.T) {
	q := newQueue[int](stepBytes(1))
	require.True(t, q.Put("a", 0, func(int) {}))
	put := make(chan bool)
	go func() { put <- q.Put("a", 0, func(int) {}) }()
	select {
	case <-put:
		t.Fatal("there was no room")
	default:
	}
	require.Equal(t, 1, q.run(0, ranLess(1)))
	require.True(t, <-put)
}

// What was put is run, whenever the queue is closed: nobody waits for an answer that never comes.
func TestNothingIsLostAtTheEnd(t *testing.T) {
	for range 200 {
		q := newQueue[int](stepBytes(4))
		var promised, taken atomic.Int64
		var putting sync.WaitGroup
		for _, from := range []string{"a", "a", "b", "c"} {
			putting.Go(func() {
				for q.Put(from, 0, func(int) { taken.Add(1) }) {
					promised.Add(1)
				}
			})
		}
		for range 10 {
			<-q.ready
			q.run(0, ranLess(2))
		}
		q.Close()
		for q.Len() > 0 {
			q.run(0, ranLess(2))
		}
		putting.Wait()
		require.Equal(t, promised.Load(), taken.Load())
		require.False(t, q.Put("a", 0, func(int) {}))
	}
}

// A sender whose part is full waits. Another one finds room, and its step is run after one turn of the first sender's.
func TestASenderFillsItsOwnPartOnly(t *testing.T) {
	const most = 8 * turnBytes
	q := newQueue[*[]string](most)
	step := func(from string) func(*[]string) { return func(ran *[]string) { *ran = append(*ran, from) } }
	var putting sync.WaitGroup
	putting.Go(func() {
		for q.Put("much", turnBytes/2, step("much")) {
		}
	})
	full := func() bool { q.mu.Lock(); defer q.mu.Unlock(); return q.held >= most/2-turnBytes }
	require.Eventually(t, full, 30*time.Second, time.Millisecond)
	require.True(t, q.Put("little", 1, step("little")))
	require.LessOrEqual(t, q.held, most, "what waits is bounded in bytes")
	var ran []string
	q.run(&ran, ranLess(3))
	require.Contains(t, ran, "little", "it waits for one turn, not for all that was there")
	q.Close()
	putting.Wait()
}

// Many senders that fill all the room hold no more than there may be together, and each gets its turns.
func TestSendersShareTheRoom(t *testing.T) {
	const most, senders = 1 << 20, 20
	q := newQueue[map[string]int](most)
	var putting sync.WaitGroup
	for i := range senders {
		from := strconv.Itoa(i)
		putting.Go(func() {
			for q.Put(from, 4<<10, func(ran map[string]int) { ran[from]++ }) {
			}
		})
	}
	ran := make(map[string]int)
	require.Eventually(t, func() bool {
		q.mu.Lock()
		held := q.held
		q.mu.Unlock()
		require.LessOrEqual(t, held, most)
		q.run(ran, ranLess(100))
		return len(ran) == senders
	}, 30*time.Second, time.Millisecond)
	q.Close()
	putting.Wait()
}
