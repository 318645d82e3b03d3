// SPDX-License-Identifier: Apache-2.0

package orderedtest_test

import (
	"context"
	"errors"
	"iter"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/test/orderedtest"
)

// The log of tests keeps the contract itself, in one process and shared by several.
func TestTheLogInMemoryIsOrdered(t *testing.T) {
	t.Run("alone", func(t *testing.T) { orderedtest.Run(t, orderedtest.OpenMemory()) })
	t.Run("shared", func(t *testing.T) { orderedtest.Run(t, orderedtest.OpenSharedMemory()) })
}

// faultyLog is a log with a fault of its own.
type faultyLog struct {
	orderedtest.Engine
	fault string
	lost  [][]byte // of the next append, which is late
	late  bool
}

// Append appends where the log ends now, whoever has appended meanwhile.
func (l *faultyLog) Append(ctx context.Context, after ordered.Position, frames ...[]byte) (ordered.Position, error) {
	if l.late {
		l.late, l.lost = false, frames
		return 0, ordered.ErrUnknown
	}
	if l.fault == "who is behind appends nothing" {
		_, after, _ = l.Bounds(ctx)
	}
	return l.Log.Append(ctx, after, frames...)
}

// Read leaves out what was trimmed.
func (l *faultyLog) Read(ctx context.Context, after ordered.Position) iter.Seq2[ordered.Frame, error] {
	return func(yield func(ordered.Frame, error) bool) {
		for f, err := range l.Log.Read(ctx, after) {
			if errors.Is(err, ordered.ErrGone) && l.fault == "who is behind a trim misses no frame" {
				floor, _, _ := l.Bounds(ctx)
				l.Read(ctx, floor)(yield)
				return
			}
			if !yield(f, err) {
				return
			}
		}
	}
}

// unknown has a late append come into the log wherever that ends.
func (l *faultyLog) unknown(late bool) func() {
	l.late = late
	return func() {
		_, end, _ := l.Bounds(context.Background())
		_, _ = l.Log.Append(context.Background(), end, l.lost...)
		l.lost = nil
	}
}

// The suite finds what it is for: an engine with one of these faults fails the test of that name.
func TestTheSuiteFindsWhatItIsFor(t *testing.T) {
	const faultOf = "EDGEBUS_ORDEREDTEST_FAULT"
	if fault := os.Getenv(faultOf); fault != "" {
		memory := orderedtest.OpenMemory()
		orderedtest.Run(t, func(t *testing.T, dir string) orderedtest.Engine {
			l := &faultyLog{Engine: memory(t, dir), fault: fault}
			e := l.Engine
			e.Log, e.Unknown = l, l.unknown
			if fault != "an outcome that nobody knows" {
				e.Unknown = nil
			}
			return e
		})
		return
	}
	for _, fault := range []string{"who is behind appends nothing", "who is behind a trim misses no frame", "an outcome that nobody knows"} {
		run := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=60s")
		run.Env = append(os.Environ(), faultOf+"="+fault)
		said, err := run.CombinedOutput()
		require.Error(t, err, "%s", said)
		require.Contains(t, string(said), "--- FAIL: "+t.Name()+"/"+strings.ReplaceAll(fault, " ", "_"), "%s", said)
	}
}
