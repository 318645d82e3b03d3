// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

// useEditor has an editor that runs a shell script with the file as $1.
func useEditor(t *testing.T, script string) {
	t.Helper()
	path := clitest.WriteFile(t, t.TempDir(), "editor", "set -e\n"+script)
	t.Setenv("KUBE_EDITOR", "")
	t.Setenv("EDITOR", "sh "+path)
	t.Setenv("TMPDIR", t.TempDir())
}

// keptFiles are the files that an edit has left.
func keptFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(os.TempDir(), "edgebus-edit-*"))
	require.NoError(t, err)
	return files
}

func startHubWithPlant(t *testing.T) string {
	t.Helper()
	server := clitest.StartHub(t)
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant))
	return server.URL
}

func TestWhatIsEditedIsStoredAndNothingElseIsTouched(t *testing.T) {
	startHubWithPlant(t)
	useEditor(t, `
! grep -E 'status:|uid:|resourceVersion:|last-applied' "$1"
sed -i 's/brightness: "40"/brightness: 41/; s/room: hall/floor: one/' "$1"`)
	out, _ := clitest.Run(t, 0, "edit", "device", "lamp")
	require.Equal(t, "device/lamp edited\n", out)
	got, _ := clitest.Run(t, 0, "get", "device", "lamp", "-o", "json")
	require.Regexp(t, `"brightness": "?41"?`, got)
	require.Contains(t, got, `"floor": "one"`)
	require.NotContains(t, got, `"room": "hall",`)
	require.Empty(t, keptFiles(t))

	useEditor(t, `grep -q '"nodeName": "n1"' "$1" && sed -i 's/"n1"/"n2"/' "$1"`)
	clitest.Run(t, 0, "edit", "device/lamp", "-o", "json")
	got, _ = clitest.Run(t, 0, "get", "device", "lamp", "-o", "yaml")
	require.Contains(t, got, "nodeName: n2")
}

func TestAnEditWithoutAChangeChangesNothing(t *testing.T) {
	startHubWithPlant(t)
	for _, script := range []string{"true", `: >"$1"`, `sed -i 's/^#.*//' "$1"; sed -i '/^$/d' "$1"`} {
		useEditor(t, script)
		before, _ := clitest.Run(t, 0, "get", "device", "lamp", "-o", "yaml")
		out, errs := clitest.Run(t, 0, "edit", "device", "lamp")
		require.Empty(t, out)
		require.Equal(t, "Edit cancelled, no changes made to device/lamp.\n", errs)
		after, _ := clitest.Run(t, 0, "get", "device", "lamp", "-o", "yaml")
		require.Equal(t, before, after)
		require.Empty(t, keptFiles(t))
	}
}

// What the hub refuses is shown on top of the file, which can be mended; what isn't mended is kept.
func TestARefusedEditIsOpenedAgainAndKept(t *testing.T) {
	startHubWithPlant(t)
	for change, reason := range map[string]string{
		`s/brightness: "40"/brightness: 400/`: "maximum",
		"s/nodeName/nodName/":                 "nodName",
		"s/name: lamp/name: bulb/":            "which object it is",
		"s/^spec:$/spec: [/":                  "is not YAML",
	} {
		useEditor(t, `sed -i '`+change+`' "$1"`)
		_, errs := clitest.Run(t, exitcode.Refused, "edit", "device", "lamp")
		require.Contains(t, errs, reason, change)
		kept := keptFiles(t)
		require.Len(t, kept, 1)
		require.Contains(t, errs, "A copy of your changes is in "+kept[0])
		require.Contains(t, clitest.ReadFile(t, kept[0]), "# It was not stored: ", "the reason is on top")
	}
	useEditor(t, `if grep -q '^# .*maximum' "$1"; then sed -i 's/400/90/' "$1"; else sed -i 's/brightness: "40"/brightness: 400/' "$1"; fi`)
	out, _ := clitest.Run(t, 0, "edit", "device", "lamp")
	require.Contains(t, out, "device/lamp edited")
	require.Empty(t, keptFiles(t))

	useEditor(t, `exit 7`)
	_, errs := clitest.Run(t, exitcode.Failed, "edit", "device", "lamp")
	require.Contains(t, errs, "EDITOR")
	require.Empty(t, keptFiles(t))
	clitest.Run(t, exitcode.NotFound, "edit", "device", "lmp")
	clitest.Run(t, exitcode.Misused, "edit")
}

// What another client writes while somebody edits stays, and the edit of the same field is refused.
func TestAnEditNeverUndoesWhatAnotherClientHasWrittenMeanwhile(t *testing.T) {
	url := startHubWithPlant(t)
	meanwhile := func(patch string) string {
		return `curl -sSf -X PATCH -H 'Content-Type: application/merge-patch+json' -d '` + patch + `' ` + url +
			`/apis/edgebus.io/v1alpha1/namespaces/default/devices/lamp >/dev/null` + "\n"
	}
	useEditor(t, meanwhile(`{"spec":{"desired":{"colorTemp_K":2700}}}`)+`sed -i 's/brightness: "40"/brightness: 41/' "$1"`)
	clitest.Run(t, 0, "edit", "device", "lamp")
	got, _ := clitest.Run(t, 0, "get", "device", "lamp", "-o", "json")
	require.Regexp(t, `"colorTemp_K": "?2700`, got)
	require.Regexp(t, `"brightness": "?41`, got)

	useEditor(t, meanwhile(`{"spec":{"desired":{"brightness":50}}}`)+`sed -i 's/41/42/' "$1"`)
	_, errs := clitest.Run(t, exitcode.Refused, "edit", "device", "lamp")
	require.Contains(t, errs, "spec.desired.brightness: another client has changed it meanwhile")
	got, _ = clitest.Run(t, 0, "get", "device", "lamp", "-o", "json")
	require.Regexp(t, `"brightness": "?50`, got)
}

// A hub that goes away while somebody edits costs nobody the text.
func TestAnEditIsKeptIfTheHubGoesAway(t *testing.T) {
	server := clitest.StartHub(t)
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant))
	handler := server.Config.Handler
	edited := filepath.Join(t.TempDir(), "edited")
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := os.Stat(edited); err == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(w, r)
	})
	useEditor(t, `sed -i 's/room: hall/room: attic/' "$1"; touch `+edited)
	_, errs := clitest.Run(t, exitcode.Unreachable, "edit", "device", "lamp")
	kept := regexp.MustCompile(`edgebus apply -f (\S+)`).FindStringSubmatch(errs)
	require.Len(t, kept, 2, errs)
	require.True(t, strings.Contains(clitest.ReadFile(t, kept[1]), "room: attic"))
}
