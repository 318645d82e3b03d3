// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
)

// A mirror that was behind is told only of the deletion of an object that was made meanwhile. Who saw the object elsewhere, and watches here now, is told of it.
func TestAMirrorTellsOfDeletionsOfWhatItNeverHad(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	m := NewKindMirror("Node", Options{})
	require.NoError(t, m.Reset(nil, 10))
	before, err := m.Watch(ctx, store.Key{Kind: "Node"}, 10)
	require.NoError(t, err)
	gone := store.Event{Type: store.Deleted, Object: store.Object{Key: store.Key{Kind: "Node", Name: "n"}, Rev: 13, Data: []byte("{}")}}
	m.Apply([]store.Event{gone}, 14)
	elsewhere, err := m.Watch(ctx, store.Key{Kind: "Node"}, 11)
	require.NoError(t, err)
	for _, watch := range []store.Stream{before, elsewhere} {
		events, err := watch.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, []store.Event{gone}, events)
		require.EqualValues(t, 14, watch.Rev())
	}
}
