// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHealthIsWhatReadyzSays(t *testing.T) {
	ready := true
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || !ready {
			http.Error(w, "nothing can be stored", http.StatusServiceUnavailable)
		}
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	require.NoError(t, CheckHealth(t.Context(), plain.Listener.Addr().String(), false))
	require.NoError(t, CheckHealth(t.Context(), secure.Listener.Addr().String(), true))
	require.Error(t, CheckHealth(t.Context(), secure.Listener.Addr().String(), false))
	ready = false
	require.ErrorContains(t, CheckHealth(t.Context(), plain.Listener.Addr().String(), false), "it is not ready: nothing can be stored")
	address := plain.Listener.Addr().String()
	plain.Close()
	require.ErrorContains(t, CheckHealth(t.Context(), address, false), "refused")
	require.Error(t, CheckHealth(t.Context(), "", false))
}
