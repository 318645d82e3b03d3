package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// A name that is made and taken already is made again, of a kind whose names are unique in all namespaces as well; not for ever.
func TestAMadeNameThatIsTakenIsMadeAgain(t *testing.T) {
	suffixes := []string{"a", "a", "b", "a", "b", "c"}
	made := 0
	h := newHub(t, func(o *Options) {
		o.Suffix = func() string {
			made++
			return suffixes[min(made, len(suffixes))-1]
		}
	})
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	body := `{"metadata":{"generateName":"lamp-"},"spec":{"deviceModelRef":{"name":"dimmable"},"protocol":{"type":"modbus"}}}`
	for _, want := range []struct{ namespace, name string }{{"default", "lamp-a"}, {"default", "lamp-b"}, {"other", "lamp-c"}} {
		got := h.ok("POST", apiRoot+"/namespaces/"+want.namespace+"/devices", body)
		require.Equal(t, want.name, got.str("metadata.name"))
		require.Equal(t, "lamp-", got.str("metadata.generateName"))
	}
	require.Equal(t, len(suffixes), made)
	h.refused(http.StatusConflict, "AlreadyExists", "POST", namespaceRoot+"/devices", body)
	require.Equal(t, len(suffixes)+9, made)
	require.Equal(t, []string{"lamp-a", "lamp-b"}, h.ok("GET", namespaceRoot+"/devices", "").names())
}
