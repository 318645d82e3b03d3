package daemon

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// until runs until its context ends, and then says so.
func until(name string, ends chan<- string) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		ends <- name
		return nil
	}
}

func TestTheServerStopsLast(t *testing.T) {
	ends := make(chan string, 3)
	ctx, stop := context.WithCancel(context.Background())
	stop()
	require.NoError(t, RunGroup(ctx, until("server", ends), until("client", ends), until("client", ends)))
	require.Equal(t, []string{"client", "client", "server"}, []string{<-ends, <-ends, <-ends})
}

func TestAllStopWithTheOneThatFails(t *testing.T) {
	failed := errors.New("failed")
	fails := func(context.Context) error { return failed }
	ends := make(chan string, 2)
	require.ErrorIs(t, RunGroup(context.Background(), fails, until("client", ends)), failed)
	require.ErrorIs(t, RunGroup(context.Background(), until("server", ends), fails), failed)
	require.Equal(t, []string{"client", "server"}, []string{<-ends, <-ends})
}
