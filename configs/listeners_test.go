// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"crypto/tls"
	"crypto/x509"
	"testing"

	"github.com/stretchr/testify/require"
)

// A browser ends a WebSocket connection that asks for a certificate.
func TestWebSocketListenersDontAskForACertificate(t *testing.T) {
	asks := &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: x509.NewCertPool()}
	own := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return asks, nil }}
	asked := func(websocket WebSocket) (answers []tls.ClientAuthType) {
		websocket.Listen, websocket.TLS = "127.0.0.1:0", true
		m := MQTT{TLS: TLSListener{Listen: "127.0.0.1:0", Own: func([]byte) *tls.Config { return own }}, WebSocket: websocket}
		list, err := m.Listeners(nil)
		require.NoError(t, err)
		require.Len(t, list, 2)
		for _, l := range list {
			c, err := l.TLS.GetConfigForClient(nil)
			require.NoError(t, err)
			again, err := l.TLS.GetConfigForClient(nil)
			require.NoError(t, err)
			require.Same(t, c, again, "clients can resume their TLS sessions")
			answers = append(answers, c.ClientAuth)
		}
		return answers
	}
	require.Equal(t, []tls.ClientAuthType{tls.VerifyClientCertIfGiven, tls.NoClientCert}, asked(WebSocket{}))
	require.Equal(t, []tls.ClientAuthType{tls.VerifyClientCertIfGiven, tls.VerifyClientCertIfGiven}, asked(WebSocket{ClientCertificates: true}))
	require.Equal(t, tls.NoClientCert, withoutClientCertificates(asks).ClientAuth)
}
