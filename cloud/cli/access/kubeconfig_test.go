// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/signin"
	"github.com/edgebus/edgebus/test/clitest"
	"github.com/edgebus/edgebus/test/selfsigned"
)

// What kubectl wrote.
const foreignKubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: prod
  cluster:
    server: https://prod.example.org
    certificate-authority: pki/ca.pem
    extensions:
    - {name: minikube, extension: {provider: minikube.sigs.k8s.io}}
contexts:
- name: prod
  context: {cluster: prod, user: prod-admin, namespace: shop}
users:
- name: prod-admin
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}
current-context: prod
preferences: {colors: true}
`

func TestAContextIsAddedToAKubeconfigOfOthers(t *testing.T) {
	path := clitest.UseKubeconfigs(t, foreignKubeconfig)[0]
	dir := t.TempDir()
	password := clitest.WriteFile(t, dir, "password", "s3cret\n")
	cert, _ := selfsigned.NewPEM(t, "ann", "hub.test")
	clitest.WriteFile(t, filepath.Dir(path), "pki/ca.pem", string(cert))
	clitest.Run(t, 0, "context", "set", "plant", "--server", "http://127.0.0.1:8080", "--mqtt", "mqtt://127.0.0.1:1", "--user", "ann", "--password-file", password)
	text := clitest.ReadFile(t, path)
	for _, line := range []string{
		"provider: minikube.sigs.k8s.io", "command: aws", "colors: true",
		"current-context: prod", "name: edgebus.io/mqtt", "server: mqtt://127.0.0.1:1", "password: s3cret", "certificate-authority: pki/ca.pem",
	} {
		require.Contains(t, text, line)
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 2, "neither lock nor temporary file")

	out, _ := clitest.Run(t, 0, "context", "list")
	require.Regexp(t, `(?m)^ +plant +http://127.0.0.1:8080 +mqtt://127.0.0.1:1$`, out)
	require.Regexp(t, `(?m)^\* +prod +https://prod.example.org +shop$`, out)
	_, errs := clitest.Run(t, 1, "get", "devices")
	require.Contains(t, errs, `signs in by "exec"`)
	clitest.Run(t, exitcode.Unreachable, "get", "devices", "--server", "http://127.0.0.1:1") // which is sent none of it

	clitest.Run(t, 0, "context", "set", "plant", "--mqtt", "", "--user", "", "--password-file", "", "-n", "hall")
	text = clitest.ReadFile(t, path)
	require.NotContains(t, text, "edgebus.io/mqtt")
	require.NotContains(t, text, "s3cret")
	require.Contains(t, text, "namespace: hall")
	clitest.Run(t, 0, "context", "delete", "plant")
	text = clitest.ReadFile(t, path)
	require.NotContains(t, text, "127.0.0.1")
	require.NotContains(t, text, "plant")
	require.Contains(t, text, "current-context: prod")
	require.Contains(t, text, "name: prod-admin")
}

func TestAKubeconfigMayBeSeveralFiles(t *testing.T) {
	cluster := func(name, server string) string {
		return "clusters: [{name: " + name + ", cluster: {server: '" + server + "'}}]\ncontexts: [{name: " + name + ", context: {cluster: " + name + "}}]\n"
	}
	paths := clitest.UseKubeconfigs(t, cluster("one", "http://127.0.0.1:1"), "", cluster("one", "http://127.0.0.1:9")+"current-context: two\n", cluster("two", "http://127.0.0.1:2"))
	_, errs := clitest.Run(t, exitcode.Unreachable, "get", "devices")
	require.Contains(t, errs, "127.0.0.1:2")
	_, errs = clitest.Run(t, exitcode.Unreachable, "get", "devices", "--context", "one")
	require.Contains(t, errs, "127.0.0.1:1:", "the first file that has an entry wins")

	clitest.Run(t, 0, "context", "set", "two", "--server", "http://127.0.0.1:3")
	require.Contains(t, clitest.ReadFile(t, paths[3]), "http://127.0.0.1:3", "an entry is changed where it is")
	clitest.Run(t, 0, "context", "set", "three", "--server", "http://127.0.0.1:4", "--use")
	require.Contains(t, clitest.ReadFile(t, paths[0]), "three", "a new one is added to the first file that exists")
	require.Contains(t, clitest.ReadFile(t, paths[0]), "current-context: three")
	require.NoFileExists(t, paths[1])
	clitest.Run(t, 0, "context", "delete", "three")
	out, _ := clitest.Run(t, 0, "context", "list")
	require.NotContains(t, out, "*")
	require.NotContains(t, out, "three")

	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", t.TempDir())
	clitest.Run(t, 0, "context", "set", "home", "--server", "http://127.0.0.1:5")
	require.FileExists(t, filepath.Join(os.Getenv("HOME"), ".kube", "config"))
}

func TestADeletedContextLeavesWhatOthersHave(t *testing.T) {
	path := clitest.UseKubeconfigs(t, `
clusters: [{name: plant, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: ann, user: {username: ann, password: a}}, {name: bob, user: {username: bob, password: b}}]
contexts: [{name: plant-ann, context: {cluster: plant, user: ann}}, {name: plant-bob, context: {cluster: plant, user: bob}}]
`)[0]
	clitest.Run(t, 0, "context", "set", "plant-ann", "--mqtt", "mqtt://127.0.0.1:1")
	out, _ := clitest.Run(t, 0, "context", "list")
	require.Regexp(t, `(?m)plant-bob +http://127.0.0.1:1 +mqtt://127.0.0.1:1$`, out, "the address is the cluster's")
	clitest.Run(t, 0, "context", "delete", "plant-ann")
	text := clitest.ReadFile(t, path)
	require.Contains(t, text, "name: plant\n")
	require.Contains(t, text, "bob")
	require.NotContains(t, text, "ann")
}

func TestAKubeconfigThatCantBeUsedIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		"clusters: {}\n": "clusters",
		"clusters: [\n":  "line 1",
		"- a\n":          "cannot unmarshal array",
		"contexts: [{name: c, context: {cluster: none}}]\ncurrent-context: c\n":                                           "context c names the cluster none, which the kubeconfig doesn't have",
		"clusters: [{name: c, cluster: {server: 5}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n": "cluster.server",
		"current-context: none\n": "there is no context none",
	} {
		path := clitest.UseKubeconfigs(t, text)[0]
		var errs string
		if strings.HasPrefix(want, "there is no") || strings.Contains(want, "doesn't have") {
			_, errs = clitest.Run(t, exitcode.NotFound, "get", "devices")
		} else {
			_, errs = clitest.Run(t, 1, "get", "devices")
			require.Contains(t, errs, path)
		}
		require.Contains(t, errs, want)
	}
	clitest.UseKubeconfigs(t, "# nothing\n")
	clitest.Run(t, 0, "context", "list")
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", "")
	_, errs := clitest.Run(t, 1, "context", "set", "x", "--server", "http://127.0.0.1:1")
	require.Contains(t, errs, "set HOME or KUBECONFIG")
}

func TestConcurrentWritersOfAKubeconfigLoseNoChange(t *testing.T) {
	path := clitest.UseKubeconfigs(t, foreignKubeconfig)[0]
	require.NoError(t, os.WriteFile(path+".lock", nil, 0o600)) // as kubectl does while it writes
	_, errs := clitest.Run(t, 1, "context", "set", "plant", "--server", "http://127.0.0.1:1")
	require.Contains(t, errs, "another program is writing it; if none is, remove "+path+".lock")
	require.Equal(t, foreignKubeconfig, clitest.ReadFile(t, path))
	require.NoError(t, os.Remove(path+".lock"))

	changed := strings.Replace(foreignKubeconfig, "namespace: shop", "namespace: hall", 1)
	err := access.ChangeKubeconfig(func(k *access.Kubeconfig) error {
		k.CurrentContext = "plant"
		return os.WriteFile(path, []byte(changed), 0o600)
	})
	require.ErrorContains(t, err, "changed it meanwhile")
	require.Equal(t, changed, clitest.ReadFile(t, path))

	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(path, link))
	t.Setenv("KUBECONFIG", link)
	clitest.Run(t, 0, "context", "set", "plant", "--server", "http://127.0.0.1:1")
	require.Contains(t, clitest.ReadFile(t, path), "plant")
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.Equal(t, os.ModeSymlink, info.Mode().Type(), "a link stays one")
}

// However many programs write a kubeconfig at once, each that succeeds is in it in the end, and who reads it meanwhile finds it whole.
func TestProgramsThatWriteAKubeconfigAtOnceAllDo(t *testing.T) {
	path := clitest.UseKubeconfigs(t, foreignKubeconfig)[0]
	var writers, readers sync.WaitGroup
	over := make(chan struct{})
	readers.Go(func() {
		for {
			k, err := access.ReadKubeconfig()
			if !assert.NoError(t, err) || !assert.Contains(t, k.Contexts, "prod") {
				return
			}
			select {
			case <-over:
				return
			default:
			}
		}
	})
	for i := range 8 {
		writers.Go(func() {
			name := fmt.Sprint("plant", i)
			assert.Eventually(t, func() bool {
				return access.ChangeKubeconfig(func(k *access.Kubeconfig) error {
					k.Contexts[name] = api.NewContext()
					return nil
				}) == nil
			}, time.Minute, time.Millisecond)
		})
	}
	writers.Wait()
	close(over)
	readers.Wait()
	k, err := access.ReadKubeconfig()
	require.NoError(t, err)
	require.Len(t, k.Contexts, 9)
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// A token is never in a file that others may read.
func TestAWrittenKubeconfigIsItsOwnersOnly(t *testing.T) {
	path := clitest.UseKubeconfigs(t, foreignKubeconfig)[0]
	require.NoError(t, os.Chmod(path, 0o644))
	open, err := os.Open(path) // by somebody who may
	require.NoError(t, err)
	defer open.Close()
	require.NoError(t, access.ChangeKubeconfig(func(k *access.Kubeconfig) error { return k.StoreToken("prod", "s3cret", signin.Provider{}) }))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	require.Contains(t, clitest.ReadFile(t, path), "s3cret")
	text, err := io.ReadAll(open)
	require.NoError(t, err)
	require.NotContains(t, string(text), "s3cret")
}

// A hub is asked with what a user and a cluster of kubectl's have.
func TestCredentialsOfAKubeconfig(t *testing.T) {
	cert, key := selfsigned.NewPEM(t, "ann", "hub.test")
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	asked := make(chan string, 1)
	hub := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := r.Header.Get("Authorization")
		if len(r.TLS.PeerCertificates) > 0 {
			who += r.TLS.PeerCertificates[0].Subject.CommonName
		}
		asked <- who
		w.WriteHeader(http.StatusForbidden)
	}))
	hub.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	hub.StartTLS()
	defer hub.Close()
	data := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	const trusted = "tls-server-name: hub.test, certificate-authority: ca.pem"
	for _, c := range []struct{ cluster, user, who string }{
		{trusted, "", ""},
		{"tls-server-name: hub.test, certificate-authority: none.pem, certificate-authority-data: " + data(cert), "token: secret", "Bearer secret"},
		{"insecure-skip-tls-verify: true", "token: old, tokenFile: token", "Bearer new"},
		{trusted, "username: ann, password: pw", "Basic " + data([]byte("ann:pw"))},
		{trusted, "client-certificate: cert.pem, client-key: key.pem", "ann"},
		{trusted, "client-certificate-data: " + data(cert) + ", client-key: key.pem", "ann"},
		{trusted, "client-certificate-data: " + data(cert) + ", client-key-data: " + data(key), "ann"},
	} {
		path := clitest.UseKubeconfigs(t, "current-context: c\nclusters: [{name: c, cluster: {server: '"+hub.URL+"', "+c.cluster+"}}]\n"+
			"users: [{name: u, user: {"+c.user+"}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n")[0]
		for name, text := range map[string]string{"ca.pem": string(cert), "cert.pem": string(cert), "key.pem": string(key), "token": "new\n"} {
			clitest.WriteFile(t, filepath.Dir(path), name, text) // relative to the kubeconfig
		}
		clitest.Run(t, exitcode.Refused, "get", "kinds")
		require.Equal(t, c.who, <-asked, "%s %s", c.cluster, c.user)
	}
	clitest.UseKubeconfigs(t, "current-context: c\nclusters: [{name: c, cluster: {server: '"+hub.URL+"', certificate-authority-data: "+data(cert)+"}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\n")
	_, errs := clitest.Run(t, exitcode.Unreachable, "get", "kinds")
	require.Contains(t, errs, "its certificate is for another name")

	paths := clitest.UseKubeconfigs(t, "current-context: c\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1', proxy-url: '"+"http://"+hub.Listener.Addr().String()+"'}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\n")
	_, errs = clitest.Run(t, exitcode.Unreachable, "get", "kinds", "--timeout", "1m")
	require.NotContains(t, errs, "time was up", "the proxy answers: %s", paths[0])
}
