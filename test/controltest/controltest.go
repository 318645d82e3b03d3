// SPDX-License-Identifier: Apache-2.0

// Package controltest is a hub's store with objects in it, in which the tests of controllers run these. It links no controller.
package controltest

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store/disk"
)

// Hub is such a store.
type Hub struct {
	testing.TB
	*disk.Store
	*objects.Registry
	Dir  string
	User *objects.Controller // who writes what a test makes
}

// New makes one, until the test ends. Secrets are stored as they are; change changes how objects are written, nil: it doesn't.
func New(t testing.TB, change func(*objects.Options)) *Hub {
	t.Helper()
	h := &Hub{TB: t, Dir: t.TempDir()}
	var err error
	h.Store, err = disk.Open(disk.Options{Path: filepath.Join(h.Dir, "log")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Store.Close()) })
	o := objects.Options{Reader: h.Store, Writer: h.Store, Log: zerolog.Nop(), Seal: PlainSealer{}}
	if change != nil {
		change(&o)
	}
	h.Registry = objects.New(o)
	h.User = h.Controller("test")
	return h
}

// PlainSealer seals nothing, so that tests see what is stored.
type PlainSealer struct{}

// Seal returns the content.
func (PlainSealer) Seal(plain []byte, _ string) ([]byte, error) { return plain, nil }

// Open returns the content.
func (PlainSealer) Open(sealed []byte, _ string) ([]byte, error) { return sealed, nil }

// Run runs controllers until stop is called, or the test ends. What fails is tried again soon.
func (h *Hub) Run(metrics prometheus.Registerer, controllers ...control.Controller) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	runtime := control.New(control.Options{
		Reader: h.Store, Watcher: h.Store, Metrics: metrics, Log: zerolog.New(zerolog.NewTestWriter(h)), FirstRetry: time.Millisecond, LastRetry: 100 * time.Millisecond,
	})
	ended := make(chan error, 1)
	go func() { ended <- runtime.Run(ctx, controllers...) }()
	stop = sync.OnceFunc(func() { cancel(); require.NoError(h, <-ended) })
	h.Cleanup(stop)
	return stop
}
