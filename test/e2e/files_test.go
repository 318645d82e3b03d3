// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/stand"
)

// No path of a request is one of a file of the host, however it is written: not for operators, and so for nobody else.
func TestNoRequestReachesAFile(t *testing.T) {
	s := stand.New(t, 1)
	s.Up("hub", "core")
	const secret = "a file of the host"
	file := filepath.Join(s.Dir, "private")
	require.NoError(t, os.WriteFile(file, []byte(secret), 0o600))
	within := strings.TrimPrefix(file, "/")
	var paths []string
	for _, base := range []string{
		"/", "/blobs/", "/metrics/", "/openapi/v3/", "/apis/edgebus.io/v1alpha1/", "/apis/edgebus.io/v1alpha1/namespaces/default/devices/", "/api/v1/devices/",
	} {
		for _, up := range []string{"../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%5c", "....//", "..;/"} {
			paths = append(paths, base+strings.Repeat(up, 12)+within, base+strings.Repeat(up, 12)+strings.ReplaceAll(within, "/", "%2f"))
		}
		paths = append(paths, base+"/"+file, base+"file://"+file, base+file+"%00")
	}
	for _, address := range []string{s.Hub.HTTP, s.Node("n1").HTTP} {
		for _, path := range paths {
			for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
				status, body := rawRequest(t, address, method, path)
				require.NotContains(t, body, secret, "%s %s", method, path)
				require.False(t, method != http.MethodGet && status/100 == 2, "%s %s: %d", method, path, status)
			}
		}
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, secret, string(text))
}

// rawRequest sends a path as it is, which no client library does.
func rawRequest(t *testing.T, address, method, path string) (status int, body string) {
	t.Helper()
	c, err := net.DialTimeout("tcp", address, stand.WaitTimeout)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(stand.WaitTimeout)))
	_, err = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", method, path, address)
	require.NoError(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	require.NoError(t, err, path)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err, path)
	return answer.StatusCode, string(text)
}
