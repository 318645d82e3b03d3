package tree

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func newQueue[B any](limit int) *queue[B] {
	q := new(queue[B])
	q.init(limit)
	return q
}

func upTo(n int) func(int) bool { return func(ran int) bool { return ran < n } }

func TestStepsRunInOrder(t *testing.T) {
	q := newQueue[*[]int](10)
	for i := range 5 {
		require.True(t, q.Put(func(b *[]int) { *b = append(*b, i) }))
	}
	<-q.ready
	var got []int
	require.Equal(t, 3, q.run(&got, upTo(3)))
	require.Equal(t, []int{0, 1, 2}, got)
	<-q.ready // what is left is announced again
	require.Equal(t, 2, q.run(&got, upTo(3)))
	require.Equal(t, []int{0, 1, 2, 3, 4}, got)
	require.Zero(t, q.Len())
}

// What comes while a batch is made is part of it: fewer commits for more steps.
func TestStepsThatComeMeanwhileAreRunToo(t *testing.T) {
	q := newQueue[int](10)
	var ran []string
	require.True(t, q.Put(func(int) {
		ran = append(ran, "first")
		require.True(t, q.Put(func(int) { ran = append(ran, "second") })) // there is room
	}))
	require.Equal(t, 2, q.run(0, upTo(10)))
	require.Equal(t, []string{"first", "second"}, ran)
}

func TestPutBlocksWhileTheQueueIsFull(t *testing.T) {
	q := newQueue[int](1)
	require.True(t, q.Put(func(int) {}))
	put := make(chan bool)
	go func() { put <- q.Put(func(int) {}) }()
	select {
	case <-put:
		t.Fatal("there was no room")
	default:
	}
	require.Equal(t, 1, q.run(0, upTo(1)))
	require.True(t, <-put)
}

// What was put is run, whenever the queue is closed: nobody waits for an answer that never comes.
func TestNothingIsLostAtTheEnd(t *testing.T) {
	for range 200 {
		q := newQueue[int](2)
		var promised, taken atomic.Int64
		var putting sync.WaitGroup
		for range 4 {
			putting.Go(func() {
				for q.Put(func(int) { taken.Add(1) }) {
					promised.Add(1)
				}
			})
		}
		for range 10 {
			<-q.ready
			q.run(0, upTo(2))
		}
		q.Close()
		<-q.Closed()
		for q.Len() > 0 {
			q.run(0, upTo(2))
		}
		putting.Wait()
		require.Equal(t, promised.Load(), taken.Load())
		require.False(t, q.Put(func(int) {}))
	}
}
