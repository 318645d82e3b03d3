package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Device is checked by its model as it is now, however often that was read before.
func TestModelsCountAsTheyAre(t *testing.T) {
	h := newHub(t)
	models := namespaceRoot + "/devicemodels"
	h.ok("POST", models, modelJSON)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", `,"desired":{"brightness":"90"}`))
	want := func(value string) []string {
		return []string{"PATCH", namespaceRoot + "/devices/lamp", `{"spec":{"desired":{"brightness":"` + value + `"}}}`, "Content-Type", mergePatch}
	}
	ask := want("91")
	h.ok(ask[0], ask[1], ask[2], ask[3:]...)
	h.ok("PUT", models+"/dimmable", strings.Replace(modelJSON, `"maximum":100`, `"maximum":50`, 1))
	ask = want("92")
	require.Contains(t, h.refused(422, "Invalid", ask[0], ask[1], ask[2], ask[3:]...), "50")
	h.ok("PUT", models+"/dimmable", modelJSON)
	ask = want("93")
	h.ok(ask[0], ask[1], ask[2], ask[3:]...)
}
