// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestEachTimerIsHeard: of as many as Run takes.
func TestEachTimerIsHeard(t *testing.T) {
	host := NewHost(&Options{}, BatchStages[struct{}]{
		Begin: func() struct{} { return struct{}{} }, Derive: func(struct{}) {}, PublishStored: func(struct{}) {},
		Store: func(context.Context, struct{}) {}, Settle: func(struct{}) error { return nil }, Publish: func(struct{}) {}, Finish: func(struct{}) {},
	})
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan int, 4)
	timers := make([]Timer[struct{}], 4)
	for i := range timers {
		timers[i] = Timer[struct{}]{C: time.After(time.Millisecond), Step: func(struct{}) { heard <- i }}
	}
	ended := make(chan error)
	go func() { ended <- host.Run(ctx, timers...) }()
	sum := 0
	for range timers {
		sum += <-heard
	}
	require.Equal(t, 0+1+2+3, sum)
	cancel()
	require.NoError(t, <-ended)
}
