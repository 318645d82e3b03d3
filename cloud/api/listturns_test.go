// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/test/oneprocessor"
)

// heldTurn is a store whose lists for one reader wait.
type heldTurn struct {
	store.Reader
	begun, release chan struct{}
}

func (h heldTurn) List(ctx context.Context, kind string, opts store.ListOptions) (store.Page, error) {
	if opts.Reader == "vic" {
		h.begun <- struct{}{}
		<-h.release
	}
	return h.Reader.List(ctx, kind, opts)
}

// Somebody who asks for many lists at once waits for them; others are answered meanwhile.
func TestEachUserHasTurnsOfTheirOwn(t *testing.T) {
	h := newHub(t)
	reader := heldTurn{h.store, make(chan struct{}, 64), make(chan struct{})}
	handler := newAPI(hubOptions{Writer: h.store, Options: Options{Reader: reader, Watcher: h.store, Authenticate: func(r *http.Request) (broker.Identity, error) { return authenticateByHeader(r) }}})
	const lists = 32
	done := make(chan int, lists)
	for range lists {
		go func() {
			done <- serveRequest(handler, "GET", namespaceRoot+"/devices?labelSelector=a", "", "As", "vic").Code
		}()
	}
	<-reader.begun
	for range 10 {
		require.Equal(t, 200, serveRequest(handler, "GET", namespaceRoot+"/devices?labelSelector=a", "", "As", "boss").Code)
	}
	require.Less(t, len(reader.begun), newListTurns().most)
	close(reader.release)
	for range lists {
		require.Equal(t, 200, <-done)
	}
}

// Who gives up waiting for a turn leaves no trace.
func TestTurnsEndWithTheRequest(t *testing.T) {
	turns := newListTurns()
	var leave []func()
	for range turns.most {
		l, err := turns.take(t.Context(), "ann")
		require.NoError(t, err)
		leave = append(leave, l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := turns.take(ctx, "ann")
	require.ErrorIs(t, err, context.Canceled)
	for _, l := range leave {
		l()
	}
	require.Empty(t, turns.users)
}

// On a single processor Go runs those who wake each other before whom the network has woken. Who makes one list after the other doesn't
// keep the others from running for longer than a turn of each takes.
func TestOnOneProcessorOthersRunBetweenTurns(t *testing.T) {
	oneprocessor.Use(t)
	turns := newListTurns()
	var taken atomic.Int64
	var lists sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range 4 {
		lists.Go(func() {
			for leave, err := turns.take(ctx, "vic"); err == nil; leave, err = turns.take(ctx, "vic") {
				taken.Add(1)
				leave()
			}
		})
	}
	givesWay := oneprocessor.GivesWay(&taken)
	stop()
	lists.Wait()
	require.True(t, givesWay)
}

// The OpenAPI documents are made once.
func TestOpenAPIDocumentsAreMadeOnce(t *testing.T) {
	h := newHub(t)
	for _, accept := range []string{"application/json", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"} {
		first := h.ok("GET", "/openapi/v2", "", "Accept", accept)
		again := h.ok("GET", "/openapi/v2", "", "Accept", accept)
		require.Equal(t, first.body, again.body)
		require.Equal(t, first.header.Get("Content-Type"), again.header.Get("Content-Type"))
	}
	var d openapi
	made := 0
	for range 3 {
		raw, err := d.get("a", func() ([]byte, error) {
			made++
			return []byte("a"), nil
		})
		require.NoError(t, err)
		require.Equal(t, "a", string(raw))
	}
	require.Equal(t, 1, made)
}
