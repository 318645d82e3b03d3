package api

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

type logLine struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logLine) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logLine) lines(with ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		has := true
		for _, w := range with {
			has = has && strings.Contains(line, w)
		}
		if has {
			n++
		}
	}
	return n
}

func TestWhoReadsSecretsIsLogged(t *testing.T) {
	var log logLine
	h := newHub(t, withSealer(t), func(o *Options) { o.Authenticate, o.Log = authenticateByHeader, zerolog.New(&log) })
	const at = "/api/v1/namespaces/default/secrets"
	h.ok("POST", at, `{"metadata":{"name":"s"},"data":{"a":"cGFzc3dvcmQ="}}`, "As", "boss")
	h.ok("GET", at+"/s", "", "As", "boss")
	h.ok("GET", at, "", "As", "boss")
	h.ok("PATCH", at+"/s", `{}`, "As", "boss", "Content-Type", mergePatch)
	for verb, name := range map[string]string{"get": "s", "list": "", "patch": "s", "create": ""} {
		require.Equal(t, 1, log.lines("Secrets asked for", `"user":"boss"`, `"remote":"127.0.0.1:`, `"verb":"`+verb+`"`, `"namespace":"default"`, `"name":"`+name+`"`), verb)
	}
	h.refused(403, "Forbidden", "GET", at+"/s", "", "As", "ann")
	require.Zero(t, log.lines("Secrets asked for", `"user":"ann"`), "who got none")
	for range 100 {
		h.ok("GET", at+"/s", "", "As", "boss")
	}
	require.Less(t, log.lines("Secrets asked for"), 100, "of a flood not each")
	require.Zero(t, log.lines("cGFzc3dvcmQ"))
	require.Zero(t, log.lines("password"))
}
