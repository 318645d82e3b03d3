package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// kubectl shows of an invalid object nothing but its causes, so each has one that says why.
func TestARefusedPatchHasACauseThatSaysWhy(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	at := namespaceRoot + "/devicemodels/dimmable"
	for _, c := range []struct{ media, patch, field, says string }{
		{jsonPatch, `[{"op":"test","path":"/metadata/name","value":"other"}]`, "patch", "the patch is not for this object"},
		{jsonPatch, `[{"op":"remove","path":"/spec/nothing"}]`, "patch", "the patch can't be applied"},
		{mergePatch, `{"metadata":{"labels":{"a":"b c"}}}`, "metadata.labels[a]", "a label's value is"},
	} {
		st := h.do("PATCH", at, c.patch, "Content-Type", c.media)
		require.Equal(t, http.StatusUnprocessableEntity, st.code, "%s", st.body)
		require.Equal(t, c.field, st.str("details.causes.0.field"), "%s", st.body)
		require.Contains(t, st.str("details.causes.0.message"), c.says)
		require.Equal(t, "DeviceModel", st.str("details.kind"))
	}
	require.Contains(t, h.refused(http.StatusBadRequest, "BadRequest", "PATCH", at, `[]`, "Content-Type", mergePatch), "a merge patch is an object")
}
