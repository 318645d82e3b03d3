// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bufio"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/websocket"

	"github.com/edgebus/edgebus/topics/resource"
)

// ServeWebSocket serves MQTT over WebSocket at a path of an HTTP server, for web pages of that server: one origin, one port. Who sends the
// request is the user of the connection, whatever its CONNECT says, and the connection ends with that user's sign-in. It returns when the
// connection has ended.
func (b *Broker) ServeWebSocket(w http.ResponseWriter, r *http.Request) error {
	if !websocket.IsWebSocketUpgrade(r) {
		return resource.Errorf(resource.Invalid, "", "MQTT over WebSocket is spoken here: connect to ws://%s%s", clipText(r.Host), r.URL.Path)
	}
	id, err := b.identify(r)
	if err != nil {
		b.noteRefusal(r, err)
		return err
	}
	l := b.requests.upgraded
	const buffer = 4 << 10 // of its own: that of the HTTP server would read past the metered socket
	upgrader := websocket.Upgrader{
		ReadBufferSize: buffer, WriteBufferSize: buffer, Subprotocols: []string{"mqtt", "mqttv3.1"}, CheckOrigin: func(r *http.Request) bool { return l.allowed(r, sameHost) }, HandshakeTimeout: b.opts.Limits.ConnectTimeout,
	}
	socket := &hijackedWriter{ResponseWriter: w}
	ws, err := upgrader.Upgrade(socket, r, nil)
	if err != nil {
		return nil //nolint:nilerr // it was answered
	}
	_ = ws.NetConn().SetDeadline(time.Time{}) // those of the request
	transport := &wsConn{Conn: ws.NetConn(), identity: &id}
	transport.established(ws)
	l.serveConn(transport)
	return nil
}

// sameHost reports whether a request comes from a page of the host that it is sent to, or from no page. Every browser says from which.
func sameHost(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && u.Host == r.Host
}

// hijackedWriter gives a WebSocket connection its socket, metered.
type hijackedWriter struct{ http.ResponseWriter }

// Hijack is of http.Hijacker.
func (h *hijackedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return &meteredSocket{Conn: conn}, buffered, nil
}
