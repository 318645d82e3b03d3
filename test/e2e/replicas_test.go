// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/selfsigned"
	"github.com/edgebus/edgebus/topics/password"
)

// kubectlAt is kubectl that talks to a hub by its own address.
func (c *hubCluster) kubectlAt(h clusterHub, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(filepath.Dir(c.Bin), ".tools", "kubectl"), append([]string{"--server", "http://" + h.http}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+c.Dir, "KUBECONFIG=")
	return cmd
}

func modelYAML(name string) io.Reader {
	return strings.NewReader("{apiVersion: edgebus.io/v1alpha1, kind: DeviceModel, metadata: {name: " + name + "}, spec: {properties: [{name: level, type: int, accessMode: ReadWrite}]}}")
}

func (c *hubCluster) standbys(owner clusterHub) (all []clusterHub) {
	for _, h := range c.hubs {
		if h != owner {
			all = append(all, h)
		}
	}
	return all
}

// awaitForwarding waits until all hubs have requests answered.
func (c *hubCluster) awaitForwarding() {
	c.t.Helper()
	for _, h := range c.hubs {
		require.NoError(c.t, harness.Eventually(c.t.Context(), time.Minute, func(ctx context.Context) error {
			_, err := harness.Call(ctx, http.MethodGet, "http://"+h.http+"/readyz", nil)
			return err
		}))
	}
}

// What is written at one hub is read at the others, at once; kubectl needs none of them in particular, and goes on at those that are left.
func TestKubectlHasThreeAddresses(t *testing.T) {
	c := newHubCluster(t)
	owner := c.awaitServing()
	c.awaitForwarding()
	for _, h := range c.standbys(owner) {
		_, err := harness.Call(t.Context(), http.MethodGet, "http://"+h.http+"/readyz?owner", nil)
		require.ErrorContains(t, err, "standby of "+owner.name)
	}
	at := c.standbys(owner)[0]
	watch := c.kubectlAt(at, "get", "devicemodels", "--watch-only", "--output-watch-events", "-o", "name")
	out, err := watch.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, watch.Start())
	told := bufio.NewReader(out)
	for i := range 12 {
		name := fmt.Sprint("model-", i)
		create := c.kubectlAt(c.hubs[i%3], "create", "-f", "-")
		create.Stdin = modelYAML(name)
		said, err := create.CombinedOutput()
		require.NoError(t, err, string(said))
		for _, h := range c.hubs {
			text, err := harness.Call(t.Context(), http.MethodGet, "http://"+h.http+modelsPath+"/"+name, nil)
			require.NoError(t, err, h.name)
			require.Contains(t, string(text), name)
			text, err = harness.Call(t.Context(), http.MethodGet, "http://"+h.http+modelsPath, nil)
			require.NoError(t, err, h.name)
			require.Contains(t, string(text), fmt.Sprintf("%q", name))
		}
		if i == 0 {
			continue // the watch may have begun behind it
		}
		for {
			line, err := told.ReadString('\n')
			require.NoError(t, err)
			if strings.Contains(line, name) {
				break
			}
		}
	}
	require.NoError(t, c.Crash(owner.name))
	_, err = io.Copy(io.Discard, told)
	require.NoError(t, err)
	_ = watch.Wait() // it ends with the owner, or is gone on with
	for i, h := range c.standbys(owner) {
		name := fmt.Sprint("after-", i)
		require.NoError(t, harness.Eventually(t.Context(), time.Minute, func(context.Context) error {
			create := c.kubectlAt(h, "apply", "-f", "-")
			create.Stdin = modelYAML(name)
			said, err := create.CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, said)
			}
			return nil
		}))
	}
	for _, h := range c.standbys(owner) {
		for _, name := range []string{"after-0", "after-1", "model-11"} {
			_, err := harness.Call(t.Context(), http.MethodGet, "http://"+h.http+modelsPath+"/"+name, nil)
			require.NoError(t, err)
		}
	}
}

// A blob is on another hub as well before it is acknowledged; a hub that was away takes what it lacks, and one that has lost a file takes that from another.
func TestBlobsAreOnAllHubs(t *testing.T) {
	c := newHubCluster(t)
	owner := c.awaitServing()
	c.awaitForwarding()
	put := func(content string) (digest string) {
		t.Helper()
		text, err := harness.Call(t.Context(), http.MethodPost, "http://"+c.standbys(owner)[0].http+"/blobs", []byte(content))
		require.NoError(t, err)
		var said struct{ Digest string }
		require.NoError(t, json.Unmarshal(text, &said))
		return said.Digest
	}
	file := func(h clusterHub, digest string) string {
		hex := strings.TrimPrefix(digest, "sha256:")
		return filepath.Join(c.Dir, h.name, "blobs", "sha256", hex[:2], hex)
	}
	count := func(digest string) (n int) {
		for _, h := range c.hubs {
			if _, err := os.Stat(file(h, digest)); err == nil {
				n++
			}
		}
		return n
	}
	first := put("first")
	require.GreaterOrEqual(t, count(first), 2)
	require.Eventually(t, func() bool { return count(first) == 3 }, time.Minute, 20*time.Millisecond)

	away := c.standbys(owner)[1]
	require.NoError(t, c.Crash(away.name))
	second := put("second")
	c.start(away)
	require.Eventually(t, func() bool { return count(second) == 3 }, time.Minute, 20*time.Millisecond)

	require.NoError(t, c.Apply(t.Context(), []byte("{apiVersion: edgebus.io/v1alpha1, kind: Node, metadata: {name: far}, spec: {config: [{name: c, configType: FileListProviderSpec, files: [{path: /opt/c, digest: '"+first+"', size: 5}]}]}}")))
	rendered := "http://" + owner.http + "/apis/edgebus.io/v1alpha1/nodes/far/rendered"
	require.NoError(t, harness.Eventually(t.Context(), time.Minute, func(ctx context.Context) error {
		_, err := harness.Call(ctx, http.MethodGet, rendered, nil)
		return err
	}))
	require.NoError(t, os.Remove(file(owner, first)))
	text, err := harness.Call(t.Context(), http.MethodGet, "http://"+owner.http+"/blobs/"+first, nil)
	require.NoError(t, err)
	require.Equal(t, "first", string(text), "another hub has it")
	_, err = harness.Call(t.Context(), http.MethodDelete, "http://"+owner.http+"/blobs/"+second, nil)
	require.NoError(t, err)
	_, err = harness.Call(t.Context(), http.MethodGet, "http://"+owner.http+"/blobs/"+second, nil)
	require.ErrorContains(t, err, "there is no blob", "what was removed isn't taken back")

	require.NoError(t, c.Crash(owner.name))
	next := c.awaitServing()
	text, err = harness.Call(t.Context(), http.MethodGet, "http://"+next.http+"/blobs/"+first, nil)
	require.NoError(t, err)
	require.Equal(t, "first", string(text))
}

// Rotated keys are copied by nobody: hubs that are there have them before they are used. One that was away takes them when it is back, and serves nobody before.
func TestHubsTakeRotatedKeysFromEachOther(t *testing.T) {
	users := fmt.Sprintf("auth: {anonymous: loopback, users: [{name: op, role: operator, nodes: ['*'], passwordHash: %q}]}\n", password.NewHash([]byte("secret")))
	c := newHubCluster(t, func(settings string) string { return settings + users })
	owner := c.awaitServing()
	c.awaitForwarding()
	there, away := c.standbys(owner)[0], c.standbys(owner)[1]
	require.NoError(t, c.Crash(away.name))
	secret := []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"default"},"stringData":{"password":"sealed"}}`)
	secrets := func(h clusterHub) string { return "http://op:secret@" + h.http + "/api/v1/namespaces/default/secrets" }
	_, err := harness.Call(t.Context(), http.MethodPost, secrets(owner), secret)
	require.NoError(t, err)
	c.command("rotate-key", "--config", owner.config)
	_, err = harness.Call(t.Context(), http.MethodPost, "http://"+there.http+"/enroll/authority/rotate", []byte("{}"))
	require.NoError(t, err)
	require.NoError(t, c.Crash(owner.name))
	c.awaitServing()
	keys := func(h clusterHub) (all []string) {
		for _, name := range []string{"secrets.key", "authority/1.key", "authority/2.key", "authority/1.pem", "authority/2.pem", "authority/authority.json"} {
			text, err := os.ReadFile(filepath.Join(c.Dir, h.name, filepath.FromSlash(name)))
			if err != nil {
				text = nil
			}
			all = append(all, string(text))
		}
		return all
	}
	require.NotContains(t, keys(there), "")
	require.Equal(t, keys(owner), keys(there))

	require.NoError(t, c.Crash(there.name))
	require.Contains(t, keys(away), "")
	c.start(away)
	require.NoError(t, harness.Eventually(t.Context(), time.Minute, func(context.Context) error {
		said, err := os.ReadFile(c.LogFile(away.name))
		if err == nil && !strings.Contains(string(said), "it lacks 3 of the keys that "+there.name+" had") {
			err = errors.New("it doesn't say that it lacks keys")
		}
		return err
	}))
	require.False(t, c.ready(away))
	c.start(there)
	require.Eventually(t, func() bool { return slices.Equal(keys(there), keys(away)) }, time.Minute, 50*time.Millisecond)
	require.NoError(t, c.Crash(there.name))
	require.Equal(t, away, c.awaitServing())
	text, err := harness.Call(t.Context(), http.MethodGet, secrets(away)+"/s", nil)
	require.NoError(t, err)
	require.Contains(t, string(text), base64.StdEncoding.EncodeToString([]byte("sealed")))
}

// A client is who it shows to be to the hub that it asks, at each of them alike; what it says in the words of hubs is worth nothing.
func TestEachHubKnowsItsClientsAndBelievesNoForgedOnes(t *testing.T) {
	cert, key := selfsigned.NewPEM(t, "carla", "carla")
	dir := t.TempDir()
	clientCA := filepath.Join(dir, "carla.pem")
	require.NoError(t, os.WriteFile(clientCA, cert, 0o600))
	users := fmt.Sprintf("auth: {anonymous: never, users: [{name: op, role: operator, nodes: ['*'], passwordHash: %q}, {name: carla, role: operator, nodes: ['*']}]}\n", password.NewHash([]byte("secret")))
	c := newHubCluster(t, func(settings string) string {
		return regexp.MustCompile(`(?m)^(http: .*tls: \{)`).ReplaceAllString(settings, fmt.Sprintf("${1}clientCA: %q, ", clientCA)) + users
	})
	owner := c.awaitServing()
	c.awaitForwarding()
	authority := x509.NewCertPool()
	roots, err := filepath.Glob(filepath.Join(c.Dir, owner.name, "authority", "*.pem"))
	require.NoError(t, err)
	text, err := os.ReadFile(roots[0])
	require.NoError(t, err)
	require.True(t, authority.AppendCertsFromPEM(text))
	block, _ := pem.Decode(cert)
	forged := fmt.Sprintf(`{"remote":"127.0.0.1:1","local":"127.0.0.1:2","tls":true,"certificates":[%q]}`, base64.StdEncoding.EncodeToString(block.Bytes))
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	unknown, err := tls.X509KeyPair(selfsigned.NewPEM(t, "carla", "carla"))
	require.NoError(t, err)
	ask := func(url string, certificates []tls.Certificate, change func(*http.Request)) int {
		t.Helper()
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: authority, Certificates: certificates}}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+modelsPath, nil)
		require.NoError(t, err)
		change(r)
		answer, err := client.Do(r)
		if err != nil {
			return 0
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	for _, h := range c.hubs {
		for _, url := range []string{"http://" + h.http, "https://" + h.https} {
			require.Equal(t, http.StatusUnauthorized, ask(url, nil, func(*http.Request) {}), url)
			require.Equal(t, http.StatusUnauthorized, ask(url, nil, func(r *http.Request) { r.Header.Set("Edgebus-Forwarded", forged) }), url)
			require.Equal(t, http.StatusUnauthorized, ask(url, nil, func(r *http.Request) { r.SetBasicAuth("op", "wrong") }), url)
			require.Equal(t, http.StatusOK, ask(url, nil, func(r *http.Request) { r.SetBasicAuth("op", "secret") }), url)
		}
		require.Equal(t, http.StatusOK, ask("https://"+h.https, []tls.Certificate{pair}, func(*http.Request) {}), h.name)
		require.Zero(t, ask("https://"+h.https, []tls.Certificate{unknown}, func(r *http.Request) { r.Header.Set("Edgebus-Forwarded", forged) }), h.name)
	}
}
