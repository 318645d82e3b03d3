package setup_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/setup"
)

// until runs until its context ends, and then says so.
func until(name string, ends chan<- string) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		ends <- name
		return nil
	}
}

func TestWhoIsAskedEndsLast(t *testing.T) {
	ends := make(chan string, 3)
	ctx, stop := context.WithCancel(context.Background())
	stop()
	require.NoError(t, setup.Run(ctx, until("asked", ends), until("asking", ends), until("asking", ends)))
	require.Equal(t, []string{"asking", "asking", "asked"}, []string{<-ends, <-ends, <-ends})
}

func TestAllEndWithTheOneThatFails(t *testing.T) {
	failed := errors.New("failed")
	fails := func(context.Context) error { return failed }
	ends := make(chan string, 2)
	require.ErrorIs(t, setup.Run(context.Background(), fails, until("asking", ends)), failed)
	require.ErrorIs(t, setup.Run(context.Background(), until("asked", ends), fails), failed)
	require.Equal(t, []string{"asking", "asked"}, []string{<-ends, <-ends})
}
