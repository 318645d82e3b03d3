package fleet

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A ResourceSync applies the manifests of a repository, owns what it applied and nothing else, and deletes what the repository describes no more.
// Its git server can say that something was pushed: webhook.txtar shows that it is read at once then.
func TestAResourceSync(t *testing.T) {
	t.Parallel()
	const fleet = "apiVersion: edgebus.io/v1alpha1\nkind: Fleet\nmetadata: {name: sync-%s}\nspec: {selector: {matchLabels: {sync: nothing}}, template: {spec: {config: [{name: a, configType: FileListProviderSpec, files: [{path: /etc/a, content: %s}]}]}}}\n"
	manifest := func(name, content string) string { return fmt.Sprintf(fleet, name, content) }
	makeFleet(t, "sync-theirs", "sync=theirs", `{}`) // of somebody else
	r := makeRepository(t, "sync", "fleets/one.yaml", manifest("one", "first")+"---\n"+manifest("two", "first"))
	r.commit(t, "fleets/theirs.yaml", manifest("theirs", "first"))
	r.commit(t, "README.md", "kind: not read\n")
	ok(t, operator, "POST", theirs+"namespaces/default/secrets", `{"metadata":{"name":"sync"},"stringData":{"webhook-secret":"hunter2"}}`)
	ok(t, operator, "PATCH", ours+"repositories/sync", `{"spec":{"secretRef":{"name":"sync"}}}`)
	apply(t, "apiVersion: edgebus.io/v1alpha1\nkind: ResourceSync\nmetadata: {name: site}\nspec: {repository: sync, targetRevision: main, path: /fleets, interval: 24h}\n")

	const content = "spec.template.spec.config.0.files.0.content"
	until(t, func() error {
		_, answer, _ := call(t, "", "GET", ours+"fleets/sync-two", "")
		return same("first", answer.text(content))
	})
	require.Equal(t, "ResourceSync/site", get(t, "fleets/sync-one").text("metadata.owner"))
	untilCondition(t, "resourcesyncs/site", "Synced", "False", "sync-theirs")
	require.Equal(t, "theirs", get(t, "fleets/sync-theirs").text("spec.selector.matchLabels.sync"))
	require.Contains(t, refused(t, 409, operator, "PATCH", ours+"fleets/sync-one", `{"spec":{"selector":{"matchLabels":{"sync":"mine"}}}}`), "ResourceSync")
	gone := func(name string) {
		t.Helper()
		until(t, func() error {
			code, _, _ := call(t, "", "GET", ours+"fleets/"+name, "")
			return same("404", fmt.Sprint(code))
		})
	}
	ok(t, operator, "DELETE", ours+"fleets/sync-one", "") // it comes back when the repository is read next
	gone("sync-one")

	// The git server says that something was pushed, and proves that it is the one.
	r.git(t, "rm", "-q", "fleets/theirs.yaml")
	r.commit(t, "fleets/one.yaml", manifest("one", "second"))
	hook := func(secret string) int {
		const body = `{"ref":"refs/heads/main"}`
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(body))
		code, _, _ := call(t, "", "POST", theirs+"repositories/sync/webhook", body, "X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		return code
	}
	require.Equal(t, 401, hook("guess"))
	require.Empty(t, ok(t, operator, "GET", ours+"repositories/sync", "").text("status.notifiedAt"))
	require.Equal(t, 202, hook("hunter2"))
	require.NotEmpty(t, ok(t, operator, "GET", ours+"repositories/sync", "").text("status.notifiedAt"))
	until(t, func() error {
		_, answer, _ := call(t, "", "GET", ours+"fleets/sync-one", "")
		return same("second", answer.text(content))
	})
	gone("sync-two")
	untilCondition(t, "resourcesyncs/site", "Synced", "True")
	out, err := kube(t, "", "get", "resourcesyncs", "site")
	require.NoError(t, err, out)
	require.Regexp(t, `site +sync +main +True`, out)

	// What can't be read applies nothing and deletes nothing.
	r.commit(t, "fleets/one.yaml", strings.Replace(manifest("one", "third"), "spec:", "spec", 1))
	require.Equal(t, 202, hook("hunter2"))
	untilCondition(t, "resourcesyncs/site", "ResourceParsed", "False", "one.yaml")
	require.Equal(t, "second", get(t, "fleets/sync-one").text(content))
	ok(t, operator, "DELETE", ours+"resourcesyncs/site", "")
	untilIs(t, "fleets/sync-one", "metadata.owner", "")
}
