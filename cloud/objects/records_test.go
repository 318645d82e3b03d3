// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestObjectsAreNotWrittenAsRecords(t *testing.T) {
	r, ctx := newTestRegistry(t), t.Context()
	_, err := objects.Create(ctx, r.Controller("test"), newNode("n1"))
	require.NoError(t, err)
	w := objects.Records(r.Store)
	for _, k := range objects.Kinds() {
		o := store.Object{Key: store.Key{Kind: k.Name, Name: "n1"}, Data: []byte(`{}`)}
		_, created := w.Create(ctx, o)
		_, updated := w.Update(ctx, o, 0)
		_, deleted := w.Delete(ctx, o.Key, 0)
		for _, err := range []error{created, updated, deleted} {
			require.ErrorIs(t, err, resource.Forbidden, k.Name)
		}
	}
	record := store.Object{Key: store.Key{Kind: "Invitation", Name: "a"}, Data: []byte(`{}`)}
	_, err = w.Create(ctx, record)
	require.NoError(t, err)
	record.Data = []byte(`{"b":1}`)
	_, err = w.Update(ctx, record, 0)
	require.NoError(t, err)
	_, err = w.Delete(ctx, record.Key, 0)
	require.NoError(t, err)
}
