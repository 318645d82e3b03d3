// SPDX-License-Identifier: Apache-2.0

package orderedtest

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/rpc"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
)

// ShareMemory serves a log in memory to other processes, by a socket in a directory, until the test ends.
func ShareMemory(t *testing.T, m *MemoryLog, dir string) {
	t.Helper()
	server := rpc.NewServer()
	require.NoError(t, server.RegisterName("log", &memoryServer{m, t.Context()}))
	l, err := net.Listen("unix", filepath.Join(dir, "log.sock"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go server.Accept(l)
}

type memoryServer struct {
	log *MemoryLog
	ctx context.Context
}

// SharedArgs are the arguments of a call.
type SharedArgs struct {
	After  ordered.Position
	Frames [][]byte
}

// SharedAnswer is its answer.
type SharedAnswer struct {
	At, Floor ordered.Position
	Body      []byte
	ID        ordered.LogID
	Error     string
	Moved     bool
}

// Append appends.
func (s *memoryServer) Append(a SharedArgs, to *SharedAnswer) (err error) {
	to.At, err = s.log.Append(s.ctx, a.After, a.Frames...)
	var moved *ordered.MovedError
	if errors.As(err, &moved) {
		to.Moved, to.At = true, moved.Last
		return nil
	}
	to.fail(err)
	return nil
}

// Next waits for the next frame.
func (s *memoryServer) Next(a SharedArgs, to *SharedAnswer) error {
	for f, err := range s.log.Read(s.ctx, a.After) {
		to.At, to.Body = f.At, f.Body
		to.fail(err)
		return nil
	}
	return nil
}

// Bounds are the log's.
func (s *memoryServer) Bounds(_ SharedArgs, to *SharedAnswer) (err error) {
	to.ID = s.log.ID()
	to.Floor, to.At, err = s.log.Bounds(s.ctx)
	return err
}

// Trim trims.
func (s *memoryServer) Trim(a SharedArgs, _ *SharedAnswer) error { return s.log.Trim(a.After) }

var sharedErrors = []error{ordered.ErrUnknown, ordered.ErrGone, ordered.ErrBack}

func (a *SharedAnswer) fail(err error) {
	for _, known := range sharedErrors {
		if errors.Is(err, known) {
			a.Error = known.Error()
			return
		}
	}
	if err != nil {
		a.Error = err.Error()
	}
}

func (a *SharedAnswer) error() error {
	for _, known := range sharedErrors {
		if a.Error == known.Error() {
			return known
		}
	}
	if a.Moved {
		return &ordered.MovedError{Last: a.At}
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	return nil
}

// sharedLog is a log that another process serves.
type sharedLog struct{ client *rpc.Client }

// OpenShared opens the log that is served in a directory.
func OpenShared(t *testing.T, dir string) Engine {
	t.Helper()
	client, err := rpc.Dial("unix", filepath.Join(dir, "log.sock"))
	require.NoError(t, err)
	return Engine{Log: sharedLog{client}, Close: client.Close, Shared: true}
}

// call calls the other process. Whether it has heard a call that ctx ended nobody knows.
func (l sharedLog) call(ctx context.Context, method string, args SharedArgs) (a SharedAnswer, err error) {
	if err := ctx.Err(); err != nil {
		return a, err
	}
	call := l.client.Go("log."+method, args, &SharedAnswer{}, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		if call.Error != nil {
			return a, errors.Join(ordered.ErrUnknown, call.Error)
		}
		a = *call.Reply.(*SharedAnswer)
		return a, a.error()
	case <-ctx.Done():
		return a, errors.Join(ordered.ErrUnknown, ctx.Err())
	}
}

// Append appends frames.
func (l sharedLog) Append(ctx context.Context, after ordered.Position, frames ...[]byte) (ordered.Position, error) {
	a, err := l.call(ctx, "Append", SharedArgs{after, frames})
	return a.At, err
}

// Read reads frames.
func (l sharedLog) Read(ctx context.Context, after ordered.Position) iter.Seq2[ordered.Frame, error] {
	return func(yield func(ordered.Frame, error) bool) {
		for {
			a, err := l.call(ctx, "Next", SharedArgs{After: after})
			if !yield(ordered.Frame{At: a.At, Body: a.Body}, err) || err != nil {
				return
			}
			after = a.At
		}
	}
}

// Bounds are the log's.
func (l sharedLog) Bounds(ctx context.Context) (floor, end ordered.Position, err error) {
	a, err := l.call(ctx, "Bounds", SharedArgs{})
	return a.Floor, a.At, err
}

// Trim trims the log.
func (l sharedLog) Trim(before ordered.Position) error {
	_, err := l.call(context.Background(), "Trim", SharedArgs{After: before})
	return err
}

// ID is the log's identity.
func (l sharedLog) ID() ordered.LogID {
	a, _ := l.call(context.Background(), "Bounds", SharedArgs{})
	return a.ID
}
