// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"crypto/tls"
	"net"
	"sync"
)

// Listener is where a broker listens.
type Listener struct {
	Name, Setting, Address string // the setting is that of the address
	TLS                    *tls.Config
	WebSocket              bool
	Origins, Pages         []string // whose web pages may connect: of others, and by ports of this host
}

// Listeners are those that the settings say. They read the certificates. pages are the ports at which the program itself serves web pages.
func (m MQTT) Listeners(pages []string) (list []Listener, err error) {
	var secure *tls.Config
	if m.TLS.Cert != "" || m.TLS.Own != nil {
		if secure, err = m.TLS.Config(); err != nil {
			return nil, err
		}
	}
	if m.Listen != "" {
		list = append(list, Listener{Name: "mqtt", Setting: "mqtt.listen", Address: m.Listen})
	}
	if m.TLS.Listen != "" {
		list = append(list, Listener{Name: "mqtts", Setting: "mqtt.tls.listen", Address: m.TLS.Listen, TLS: secure})
	}
	if m.WebSocket.Listen != "" {
		ws := Listener{Name: "websocket", Setting: "mqtt.websocket.listen", Address: m.WebSocket.Listen, WebSocket: true, Origins: m.WebSocket.Origins, Pages: pages}
		if m.WebSocket.TLS {
			ws.TLS = secure
			if !m.WebSocket.ClientCertificates {
				ws.TLS = withoutClientCertificates(secure)
			}
		}
		list = append(list, ws)
	}
	return list, nil
}

// withoutClientCertificates is the same for clients that can't be asked for a certificate.
func withoutClientCertificates(c *tls.Config) *tls.Config {
	unasked := c.Clone()
	unasked.ClientAuth, unasked.ClientCAs = tls.NoClientCert, nil
	find := c.GetConfigForClient
	if find == nil {
		return unasked
	}
	var mu sync.Mutex
	var found, made *tls.Config // made is kept as long as found is, so that clients can resume their TLS sessions
	unasked.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := find(hello)
		if c == nil || err != nil {
			return c, err
		}
		mu.Lock()
		defer mu.Unlock()
		if c != found {
			found, made = c, withoutClientCertificates(c)
		}
		return made, nil
	}
	return unasked
}

// Ports are those at which the program serves HTTP.
func (h HTTP) Ports() (ports []string) {
	for _, address := range []string{h.Listen, h.TLS.Listen} {
		if _, port, err := net.SplitHostPort(address); err == nil {
			ports = append(ports, port)
		}
	}
	return ports
}
