// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"
)

// runPahoGo does with paho.golang what the others do in their own languages.
func runPahoGo(t *testing.T, at brokerTarget, _ int, prefix string) {
	p := pahoClients{t, at, prefix}
	p.qos()
	p.will()
	p.resume()
	p.shared()
	p.refused()
	p.request()
}

type pahoClients struct {
	t      *testing.T
	at     brokerTarget
	prefix string
}

type pahoClient struct {
	*paho.Client
	t        *testing.T
	conn     net.Conn
	messages chan *paho.Publish
	connack  *paho.Connack
}

func (p pahoClients) topic(name string) string { return p.prefix + "/" + name }

func (p pahoClients) connect(name string, change ...func(*paho.Connect)) *pahoClient {
	p.t.Helper()
	c := &pahoClient{t: p.t, conn: packets.NewThreadSafeConn(p.dial()), messages: make(chan *paho.Publish, 100)}
	c.Client = paho.NewClient(paho.ClientConfig{Conn: c.conn, OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(r paho.PublishReceived) (bool, error) { c.messages <- r.Packet; return true, nil },
	}})
	o := &paho.Connect{ClientID: p.prefix + name, CleanStart: true, KeepAlive: 30}
	if p.at.pki != "" {
		o.Username, o.UsernameFlag, o.Password, o.PasswordFlag = user, true, []byte(password), true
	}
	for _, f := range change {
		f(o)
	}
	var err error
	c.connack, err = c.Connect(p.t.Context(), o)
	require.NoError(p.t, err)
	return c
}

func (p pahoClients) dial() net.Conn {
	p.t.Helper()
	if p.at.scheme == "ws" {
		dialer := websocket.Dialer{Subprotocols: []string{"mqtt"}}
		ws, res, err := dialer.Dial("ws://"+p.at.address, nil)
		require.NoError(p.t, err)
		_ = res.Body.Close()
		return &wsConn{Conn: ws.NetConn(), ws: ws}
	}
	if p.at.pki == "" {
		conn, err := net.Dial("tcp", p.at.address)
		require.NoError(p.t, err)
		return conn
	}
	pem, err := os.ReadFile(p.at.ca())
	require.NoError(p.t, err)
	roots := x509.NewCertPool()
	require.True(p.t, roots.AppendCertsFromPEM(pem))
	conn, err := tls.Dial("tcp", p.at.address, &tls.Config{RootCAs: roots})
	require.NoError(p.t, err)
	return conn
}

// wsConn is a stream of WebSocket messages.
type wsConn struct {
	net.Conn
	ws   *websocket.Conn
	rest io.Reader
}

func (c *wsConn) Read(b []byte) (int, error) {
	for {
		if c.rest == nil {
			_, r, err := c.ws.NextReader()
			if err != nil {
				return 0, err
			}
			c.rest = r
		}
		n, err := c.rest.Read(b)
		if err == io.EOF {
			c.rest, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (c *wsConn) Write(b []byte) (int, error) {
	return len(b), c.ws.WriteMessage(websocket.BinaryMessage, b)
}

func (c *pahoClient) subscribe(filter string, qos byte) {
	c.t.Helper()
	_, err := c.Subscribe(c.t.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: qos}}})
	require.NoError(c.t, err)
}

func (c *pahoClient) publish(topic, payload string, qos byte, change ...func(*paho.Publish)) {
	c.t.Helper()
	m := &paho.Publish{Topic: topic, Payload: []byte(payload), QoS: qos}
	for _, f := range change {
		f(m)
	}
	_, err := c.Publish(c.t.Context(), m)
	require.NoError(c.t, err)
}

func (c *pahoClient) next() *paho.Publish {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), stepTimeout)
	defer cancel()
	select {
	case m := <-c.messages:
		return m
	case <-ctx.Done():
		require.Fail(c.t, "waited in vain for a message")
		return nil
	}
}

func (c *pahoClient) leave() { _ = c.Disconnect(&paho.Disconnect{}) }

func (p pahoClients) qos() {
	sub, pub := p.connect("sub"), p.connect("pub")
	sub.subscribe(p.topic("qos/+"), 2)
	for qos := range byte(3) {
		pub.publish(p.topic(fmt.Sprint("qos/", qos)), "message", qos)
		got := sub.next()
		require.Equal(p.t, qos, got.QoS)
		require.Equal(p.t, "message", string(got.Payload))
	}
	pub.publish(p.topic("retained"), "kept", 1, func(m *paho.Publish) { m.Retain = true })
	sub.subscribe(p.topic("retained"), 1)
	require.True(p.t, sub.next().Retain)
	pub.publish(p.topic("retained"), "", 1, func(m *paho.Publish) { m.Retain = true })
	sub.leave()
	pub.leave()
}

func (p pahoClients) will() {
	watcher := p.connect("watcher")
	watcher.subscribe(p.topic("will"), 1)
	doomed := p.connect("doomed", func(o *paho.Connect) {
		o.WillMessage = &paho.WillMessage{Topic: p.topic("will"), Payload: []byte("gone"), QoS: 1}
	})
	_ = doomed.conn.Close()
	require.Equal(p.t, "gone", string(watcher.next().Payload))
	watcher.leave()
}

func (p pahoClients) resume() {
	lasting := func(o *paho.Connect) {
		expiry := uint32(60)
		o.CleanStart, o.Properties = false, &paho.ConnectProperties{SessionExpiryInterval: &expiry}
	}
	c := p.connect("lasting", lasting)
	require.False(p.t, c.connack.SessionPresent)
	c.subscribe(p.topic("resume"), 1)
	c.leave()
	pub := p.connect("pub")
	for i := range 20 {
		pub.publish(p.topic("resume"), fmt.Sprint(i), 1)
	}
	c = p.connect("lasting", lasting)
	require.True(p.t, c.connack.SessionPresent)
	for i := range 20 {
		require.Equal(p.t, fmt.Sprint(i), string(c.next().Payload))
	}
	c.leave()
	pub.leave()
	p.connect("lasting").leave()
}

func (p pahoClients) shared() {
	one, two, pub := p.connect("one"), p.connect("two"), p.connect("pub")
	for _, c := range []*pahoClient{one, two} {
		c.subscribe("$share/group/"+p.topic("shared"), 1)
	}
	seen := make(map[string]bool)
	for i := range 10 {
		pub.publish(p.topic("shared"), fmt.Sprint(i), 1)
	}
	for range 5 {
		seen[string(one.next().Payload)], seen[string(two.next().Payload)] = true, true
	}
	require.Len(p.t, seen, 10)
	for _, c := range []*pahoClient{one, two, pub} {
		c.leave()
	}
}

func (p pahoClients) refused() {
	c := p.connect("refused")
	answer, err := c.Publish(p.t.Context(), &paho.Publish{Topic: "v1/nodes/n1/spec", Payload: []byte("mine"), QoS: 1})
	require.Error(p.t, err)
	require.Equal(p.t, byte(0x87), answer.ReasonCode)
	require.NotEmpty(p.t, answer.Properties.ReasonString)
	c.leave()
}

func (p pahoClients) request() {
	asker, answerer := p.connect("asker"), p.connect("answerer")
	asker.subscribe(p.topic("answers"), 1)
	answerer.subscribe(p.topic("requests"), 1)
	user := paho.UserProperties{{Key: "a", Value: "1"}, {Key: "a", Value: "2"}}
	asker.publish(p.topic("requests"), "6*7", 1, func(m *paho.Publish) {
		m.Properties = &paho.PublishProperties{ResponseTopic: p.topic("answers"), CorrelationData: []byte{0, 1}, User: user}
	})
	asked := answerer.next()
	require.Equal(p.t, user, asked.Properties.User)
	answerer.publish(asked.Properties.ResponseTopic, "42", 1, func(m *paho.Publish) {
		m.Properties = &paho.PublishProperties{CorrelationData: asked.Properties.CorrelationData}
	})
	answer := asker.next()
	require.Equal(p.t, "42", string(answer.Payload))
	require.Equal(p.t, []byte{0, 1}, answer.Properties.CorrelationData)
	asker.leave()
	answerer.leave()
}
