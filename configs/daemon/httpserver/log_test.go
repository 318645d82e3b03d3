package httpserver

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/configs"
)

// The log says where it listens, and what net/http complains of, in its own form, and not all of a flood.
func TestTheLogIsOneOfJSON(t *testing.T) {
	cert, key := certificate(t, "server")
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(path)
	require.NoError(t, err)
	defer log.Close()
	s, err := Listen(configs.HTTP{
		Listen: "127.0.0.1:0", TLS: configs.TLSListener{Listen: "127.0.0.1:0", Cert: cert, Key: key},
	}, configs.Limits{Requests: 2}, zerolog.New(log), http.NotFoundHandler())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	const tries = 30
	began := time.Now()
	for range tries {
		conn, err := net.Dial("tcp", s.Addrs()[1].String())
		require.NoError(t, err)
		_, err = conn.Write([]byte("this is no TLS"))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, conn) // until the server has given up
		require.NoError(t, conn.Close())
	}
	took := time.Since(began)
	cancel()
	require.NoError(t, <-ended)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	said := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var fields struct {
			Level, Message, Address string
			TLS                     bool
		}
		require.NoError(t, json.Unmarshal([]byte(line), &fields), line)
		require.Equal(t, "info", fields.Level)
		what, _, _ := strings.Cut(fields.Message, " from")
		said[what]++
		if fields.Address != "" {
			require.Equal(t, map[bool]string{false: s.Addrs()[0].String(), true: s.Addrs()[1].String()}[fields.TLS], fields.Address)
		}
	}
	require.Equal(t, 2, said["listening for HTTP"])
	require.NotZero(t, said["TLS handshake error"])
	if took < 10*time.Second {
		require.Less(t, said["TLS handshake error"], tries)
	}
}
