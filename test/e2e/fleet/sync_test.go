// SPDX-License-Identifier: Apache-2.0

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
	callOK(t, operator, "POST", flightctlPath+"namespaces/default/secrets", `{"metadata":{"name":"sync"},"stringData":{"webhook-secret":"hunter2"}}`)
	callOK(t, operator, "PATCH", apiPath+"repositories/sync", `{"spec":{"secretRef":{"name":"sync"}}}`)
	applyManifest(t, "apiVersion: edgebus.io/v1alpha1\nkind: ResourceSync\nmetadata: {name: site}\nspec: {repository: sync, targetRevision: main, path: /fleets, interval: 24h}\n")

	const content = "spec.template.spec.config.0.files.0.content"
	waitUntil(t, func() error {
		_, answer, _ := callAPI(t, "", "GET", apiPath+"fleets/sync-two", "")
		return wantEqual("first", answer.text(content))
	})
	require.Equal(t, "ResourceSync/site", getObject(t, "fleets/sync-one").text("metadata.owner"))
	untilCondition(t, "resourcesyncs/site", "Synced", "False", "sync-theirs")
	require.Equal(t, "theirs", getObject(t, "fleets/sync-theirs").text("spec.selector.matchLabels.sync"))
	require.Contains(t, callRefused(t, 409, operator, "PATCH", apiPath+"fleets/sync-one", `{"spec":{"selector":{"matchLabels":{"sync":"mine"}}}}`), "ResourceSync")
	gone := func(name string) {
		t.Helper()
		waitUntil(t, func() error {
			code, _, _ := callAPI(t, "", "GET", apiPath+"fleets/"+name, "")
			return wantEqual("404", fmt.Sprint(code))
		})
	}
	callOK(t, operator, "DELETE", apiPath+"fleets/sync-one", "") // it comes back when the repository is read next
	gone("sync-one")

	// The git server says that something was pushed, and proves that it is the one.
	r.git(t, "rm", "-q", "fleets/theirs.yaml")
	r.commit(t, "fleets/one.yaml", manifest("one", "second"))
	hook := func(secret string) int {
		const body = `{"ref":"refs/heads/main"}`
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(body))
		code, _, _ := callAPI(t, "", "POST", flightctlPath+"repositories/sync/webhook", body, "X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		return code
	}
	require.Equal(t, 401, hook("guess"))
	require.Empty(t, callOK(t, operator, "GET", apiPath+"repositories/sync", "").text("status.notifiedAt"))
	require.Equal(t, 202, hook("hunter2"))
	require.NotEmpty(t, callOK(t, operator, "GET", apiPath+"repositories/sync", "").text("status.notifiedAt"))
	waitUntil(t, func() error {
		_, answer, _ := callAPI(t, "", "GET", apiPath+"fleets/sync-one", "")
		return wantEqual("second", answer.text(content))
	})
	gone("sync-two")
	untilCondition(t, "resourcesyncs/site", "Synced", "True")
	out, err := kubectl(t, "", "get", "resourcesyncs", "site")
	require.NoError(t, err, out)
	require.Regexp(t, `site +sync +main +True`, out)

	// What can't be read applies nothing and deletes nothing.
	r.commit(t, "fleets/one.yaml", strings.Replace(manifest("one", "third"), "spec:", "spec", 1))
	require.Equal(t, 202, hook("hunter2"))
	untilCondition(t, "resourcesyncs/site", "ResourceParsed", "False", "one.yaml")
	require.Equal(t, "second", getObject(t, "fleets/sync-one").text(content))
	callOK(t, operator, "DELETE", apiPath+"resourcesyncs/site", "")
	untilIs(t, "fleets/sync-one", "metadata.owner", "")
}
