// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/twin"
	"github.com/edgebus/edgebus/topics"
)

// A node whose report can't be stored holds up no other node's, and its own newest is stored as soon as that is possible.
func TestAReportThatCannotBeStoredHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		reports := make(chan []twin.Report)
		next := func(ctx context.Context) ([]twin.Report, error) {
			select {
			case list := <-reports:
				return list, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		of := func(node, value string) twin.Report {
			return twin.Report{Address: topics.Address{Node: node}, Value: []byte(value)}
		}
		var mu sync.Mutex
		stored, works := map[string]string{}, false
		go storeReports(ctx, next, func(r twin.Report) error {
			mu.Lock()
			defer mu.Unlock()
			if r.Node == "n1" && !works {
				return errors.New("the store refuses it")
			}
			stored[r.Node] += string(r.Value)
			return nil
		})
		reports <- []twin.Report{of("n1", "a"), of("n2", "b")}
		reports <- []twin.Report{of("n1", "c"), of("n3", "d")}
		synctest.Wait()
		mu.Lock()
		require.Equal(t, map[string]string{"n2": "b", "n3": "d"}, stored)
		mu.Unlock()
		time.Sleep(time.Hour) // of the bubble's clock, which nobody waits for
		synctest.Wait()
		mu.Lock()
		works = true
		mu.Unlock()
		time.Sleep(2 * time.Minute) // likewise
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, map[string]string{"n1": "c", "n2": "b", "n3": "d"}, stored)
	})
}
