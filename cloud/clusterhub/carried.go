// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/peer"
	"github.com/edgebus/edgebus/topics/backoff"
)

// carriedMQTT is what streams between hubs are for that carry an MQTT client's connection.
const carriedMQTT = "mqtt"

const (
	originTime = 5 * time.Second        // in which the other hub says whose a connection is
	ownerPause = 100 * time.Millisecond // between two looks for the hub that serves
)

// newCarrier takes MQTT connections at this hub's ports for the one that serves, while this one stands by.
func (s *SharedLog) newCarrier(o Options) (*broker.ConnCarrier, error) {
	cfg := o.Config
	cfg.MQTT.TLS.Own = func(clientCA []byte) *tls.Config { return s.peers.mqttCertificates(clientCA) }
	listeners, err := o.Listeners(cfg)
	if err != nil {
		return nil, err
	}
	return broker.NewConnCarrier(broker.ConnCarrierOptions{Listeners: listeners, InsecureListen: cfg.Insecure, Limits: cfg.Limits.Limits, Dial: s.carryTo, Log: o.Log})
}

// carryTo opens a stream for a connection to the hub that serves. While none does, or it has only just taken the log, it waits.
func (s *SharedLog) carryTo(ctx context.Context, from broker.Origin) (net.Conn, error) {
	stream, err := s.peers.Dial(ctx, carriedMQTT)
	for (errors.Is(err, peer.ErrNoOwner) || errors.Is(err, peer.ErrRefused)) && backoff.Sleep(ctx, ownerPause) {
		stream, err = s.peers.Dial(ctx, carriedMQTT)
	}
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(from)
	if err == nil {
		_ = stream.SetWriteDeadline(time.Now().Add(originTime))
		_, err = stream.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	}
	if err != nil {
		return nil, errors.Join(err, stream.Close())
	}
	return stream, stream.SetWriteDeadline(time.Time{})
}

// mostOrigin is how long what is said of a connection may be, a certificate included.
const mostOrigin = 64 << 10

func readOrigin(stream net.Conn) (from broker.Origin, err error) {
	_ = stream.SetReadDeadline(time.Now().Add(originTime))
	var length [4]byte
	if _, err = io.ReadFull(stream, length[:]); err != nil {
		return from, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > mostOrigin {
		return from, fmt.Errorf("%d bytes about a connection are too many", n)
	}
	text := make([]byte, n)
	if _, err = io.ReadFull(stream, text); err == nil {
		err = json.Unmarshal(text, &from)
	}
	return from, errors.Join(err, stream.SetReadDeadline(time.Time{}))
}

// serveCarried has the broker of the hub that serves take a connection that another one carries to it.
func (s *SharedLog) serveCarried(br *broker.Broker, stream peer.Stream) {
	from, err := readOrigin(stream)
	from.Gone = stream.Gone
	if err == nil {
		err = br.ServeCarried(stream, from)
	}
	if err != nil {
		s.log.Warn().Err(err).Str("hub", stream.Hub).Msg("a connection that another hub carries here is not served")
	}
}

// mqttCertificates are those of the hubs' authority as this one has it at the moment.
func (p *peers) mqttCertificates(clientCA []byte) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		a := p.authority.Load()
		if a == nil {
			return nil, errors.New("this hub has no authority before it has served once")
		}
		return a.TLS(clientCA).GetConfigForClient(hello)
	}}
}
