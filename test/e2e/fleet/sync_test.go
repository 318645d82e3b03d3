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
	const nodes = "apiVersion: edgebus.io/v1alpha1\nkind: Node\nmetadata: {name: sync-%s, labels: {line: %q}}\nspec: {config: [%s]}\n"
	item := "{name: a, configType: FileListProviderSpec, files: [{path: /etc/a, content: %s}]}"
	manifest := func(name, content string) string { return fmt.Sprintf(nodes, name, "7", fmt.Sprintf(item, content)) }
	makeNode(t, "sync-theirs", "line=1") // of somebody else
	r := makeRepository(t, "sync", "nodes/one.yaml", manifest("one", "first")+"---\n"+manifest("two", "first"))
	r.commit(t, "nodes/theirs.yaml", manifest("theirs", "first"))
	r.commit(t, "README.md", "kind: not read\n")
	ok(t, operator, "POST", theirs+"namespaces/default/secrets", `{"metadata":{"name":"sync"},"stringData":{"webhook-secret":"hunter2"}}`)
	ok(t, operator, "PATCH", ours+"repositories/sync", `{"spec":{"secretRef":{"name":"sync"}}}`)
	apply(t, "apiVersion: edgebus.io/v1alpha1\nkind: ResourceSync\nmetadata: {name: site}\nspec: {repository: sync, targetRevision: main, path: /nodes, interval: 24h}\n")

	const content = "spec.config.0.files.0.content"
	until(t, func() error {
		_, answer, _ := call(t, "", "GET", ours+"nodes/sync-two", "")
		return same("first", answer.text(content))
	})
	require.Equal(t, "ResourceSync/site", get(t, "nodes/sync-one").text("metadata.owner"))
	untilCondition(t, "resourcesyncs/site", "Synced", "False", "sync-theirs")
	require.Equal(t, "1", get(t, "nodes/sync-theirs").text("metadata.labels.line"))
	require.Contains(t, refused(t, 409, operator, "PATCH", ours+"nodes/sync-one", `{"spec":{"config":[]}}`), "ResourceSync")
	ok(t, operator, "DELETE", ours+"nodes/sync-one", "") // it comes back when the repository is read next

	// The git server says that something was pushed, and proves that it is the one.
	r.git(t, "rm", "-q", "nodes/theirs.yaml")
	r.commit(t, "nodes/one.yaml", manifest("one", "second"))
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
		_, answer, _ := call(t, "", "GET", ours+"nodes/sync-one", "")
		return same("second", answer.text(content))
	})
	until(t, func() error {
		code, _, _ := call(t, "", "GET", ours+"nodes/sync-two", "")
		return same("404", fmt.Sprint(code))
	})
	untilCondition(t, "resourcesyncs/site", "Synced", "True")
	out, err := kube(t, "", "get", "resourcesyncs", "site")
	require.NoError(t, err, out)
	require.Regexp(t, `site +sync +main +True`, out)

	// What can't be read applies nothing and deletes nothing.
	r.commit(t, "nodes/one.yaml", strings.Replace(manifest("one", "third"), "spec:", "spec", 1))
	require.Equal(t, 202, hook("hunter2"))
	untilCondition(t, "resourcesyncs/site", "ResourceParsed", "False", "one.yaml")
	require.Equal(t, "second", get(t, "nodes/sync-one").text(content))
	ok(t, operator, "DELETE", ours+"resourcesyncs/site", "")
	untilIs(t, "nodes/sync-one", "metadata.owner", "")
}
