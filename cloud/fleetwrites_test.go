// SPDX-License-Identifier: Apache-2.0

package cloud_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/simnodes"
	"github.com/edgebus/edgebus/topics/resource"
)

// countingLog counts the frames that were appended with a record that has one of some texts.
type countingLog struct {
	ordered.Log
	texts []string
	mu    sync.Mutex
	count map[string]int
}

func (l *countingLog) Append(ctx context.Context, after ordered.Position, frames ...[]byte) (ordered.Position, error) {
	at, err := l.Log.Append(ctx, after, frames...)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, frame := range frames {
		for _, text := range l.texts {
			l.count[text] += bytes.Count(frame, []byte(text))
		}
	}
	return at, err
}

// take is what was counted since it was called last.
func (l *countingLog) take() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.count = make(map[string]int) }()
	return l.count
}

// A template's change costs a node of its fleet two durable writes: the Node with its spec, and what is rendered of that. That the spec is
// rendered, what the node reports of it, and the version that it then has are seen in the Node, and follow from these, also after a restart.
func TestATemplatesChangeWritesANodeTwice(t *testing.T) {
	const (
		node, rendered = "\x04Node\x00\x02n1", "\x0cRenderedSpec\x00\x02n1" // as records of objects begin
		status         = `"specVersion":`                                   // which only Nodes' have
	)
	cfg, _, err := configs.Parse[configs.Hub]("cloudhub", "dev", []string{
		"--data-dir", t.TempDir(), "--mqtt-listen", "127.0.0.1:0", "--mqtt-websocket-listen", "", "--http-listen", "127.0.0.1:0",
	}, io.Discard)
	require.NoError(t, err)
	log := &countingLog{texts: []string{node, rendered, status}, count: make(map[string]int)}
	at, stop := startHub(t, cfg, func(l ordered.Log) ordered.Log { log.Log = l; return log })
	call := func(method, path, body string) []byte {
		t.Helper()
		answer, err := harness.Call(t.Context(), method, "http://"+at.HTTP[0].String()+"/apis/edgebus.io/v1alpha1/"+path, []byte(body))
		require.NoError(t, err)
		return answer
	}
	// applied waits until the Node says that it has a version of the template.
	applied := func(version string) {
		t.Helper()
		require.Eventually(t, func() bool {
			var n resource.Node
			require.NoError(t, json.Unmarshal(call(http.MethodGet, "nodes/n1", ""), &n))
			c := resource.ConditionOf(n.Status.Conditions, resource.ConditionSpecRendered)
			return n.Metadata.Annotations[resource.VersionAnnotation] == version && n.Metadata.Annotations[resource.AssignedVersionAnnotation] == version &&
				n.Status.RenderedVersion == n.Status.SpecVersion && c.Status == "True" && c.ObservedGeneration == n.Metadata.Generation
		}, 30*time.Second, 5*time.Millisecond, "it has %s", version)
	}
	template := func(text string) string {
		return fmt.Sprintf(`"template":{"spec":{"config":[{"name":"motd","configType":"FileListProviderSpec","files":[{"path":"/etc/motd","content":%q}]}]}}`, text)
	}
	call(http.MethodPost, "nodes", `{"metadata":{"name":"n1","labels":{"site":"a"}}}`)
	nodes, err := simnodes.Start(simnodes.Options{Hub: at.MQTT[0].String(), Agent: simnodes.ApplyAtOnce}, "n1")
	require.NoError(t, err)
	t.Cleanup(nodes.Stop)
	call(http.MethodPost, "fleets", `{"metadata":{"name":"a"},"spec":{"selector":{"matchLabels":{"site":"a"}},`+template("1")+`}}`)
	applied("a-0000001")
	first := log.take()
	require.Positive(t, first[node]*first[rendered]*first[status], "records begin as they did: %v", first)
	const changes = 5
	for i := range changes {
		call(http.MethodPatch, "fleets/a", `{"spec":{`+template(fmt.Sprint(i+2))+`}}`)
		applied(fmt.Sprintf("a-%07d", i+2))
	}
	require.Equal(t, map[string]int{node: changes, rendered: changes, status: 0}, log.take())

	stop()
	nodes.Stop()
	at, _ = startHub(t, cfg, nil)
	applied(fmt.Sprintf("a-%07d", changes+1))
}
