// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// maxPacket is the size of the largest packet that is accepted.
const maxPacket = 1 << 20

// packet is a packet of the codec.
type packet interface {
	WriteTo(io.Writer) (int64, error)
}

// readPacket reads one packet of at most limit bytes. The length is checked before anything is allocated for it.
func readPacket(r *bufio.Reader, limit uint32) (*packets.ControlPacket, error) {
	first, err := r.ReadByte()
	if err != nil {
		return nil, err
	}
	size, err := readLength(r)
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("mqtt: the broker sent a packet of %d bytes, the limit is %d", size, limit)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return decodePacket(first, body)
}

func readLength(r *bufio.Reader) (uint32, error) {
	var n uint32
	for shift := 0; shift < 28; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		n |= uint32(b&0x7f) << shift
		if b < 0x80 {
			return n, nil
		}
	}
	return 0, errors.New("mqtt: malformed packet length from the broker")
}

// decodePacket decodes a packet's body. The codec slices by lengths that are in the packet: if it panics, the packet is
// malformed.
func decodePacket(first byte, body []byte) (cp *packets.ControlPacket, err error) {
	defer func() {
		if p := recover(); p != nil {
			cp, err = nil, fmt.Errorf("mqtt: malformed packet of type %d from the broker: %v", first>>4, p)
		}
	}()
	cp = packets.NewControlPacket(first >> 4)
	if cp == nil {
		return nil, fmt.Errorf("mqtt: packet type %d from the broker is unknown", first>>4)
	}
	if p, ok := cp.Content.(*packets.Publish); ok {
		p.QoS, p.Duplicate, p.Retain = first>>1&3, first&8 != 0, first&1 != 0
	}
	if err := cp.Content.Unpack(bytes.NewBuffer(body)); err != nil {
		return nil, fmt.Errorf("mqtt: malformed packet of type %d from the broker: %w", first>>4, err)
	}
	return cp, nil
}

func (o Options) connectPacket(s server) (*packets.Connect, error) {
	if o.Secret != nil {
		secret, err := o.Secret()
		if err != nil {
			return nil, fmt.Errorf("password: %w", err)
		}
		o.Password = secret
	}
	most := uint32(maxPacket)
	p := &packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5,
		ClientID:   o.ClientID,
		KeepAlive:  uint16(o.KeepAlive / time.Second),
		CleanStart: o.CleanStart,
		Properties: &packets.Properties{ReceiveMaximum: &o.ReceiveMaximum, MaximumPacketSize: &most},
	}
	if o.Properties != nil {
		for _, u := range o.Properties() {
			p.Properties.User = append(p.Properties.User, packets.User(u))
		}
	}
	if o.SessionExpiry > 0 {
		p.Properties.SessionExpiryInterval = wholeSeconds(o.SessionExpiry)
	}
	user, password := o.User, o.Password
	if u := s.url.User; user == "" && u != nil {
		user = u.Username()
		password, _ = u.Password()
	}
	if user != "" {
		p.UsernameFlag, p.Username = true, user
	}
	if password != "" {
		p.PasswordFlag, p.Password = true, []byte(password)
	}
	if w := o.Will; w != nil {
		p.WillFlag, p.WillTopic, p.WillMessage, p.WillQOS, p.WillRetain = true, w.Topic, w.Payload, w.QoS, w.Retain
		p.WillProperties = &packets.Properties{}
	}
	return p, nil
}

func wholeSeconds(d time.Duration) *uint32 {
	s := min((d+time.Second-1)/time.Second, 1<<32-1)
	n := uint32(s)
	return &n
}

func (m Message) packet(id uint16, again bool) *packets.Publish {
	props := &packets.Properties{
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.Correlation,
	}
	if m.Text {
		utf8 := byte(1)
		props.PayloadFormat = &utf8
	}
	if m.Expiry > 0 {
		props.MessageExpiry = wholeSeconds(m.Expiry)
	}
	for _, u := range m.User {
		props.User = append(props.User, packets.User{Key: u.Key, Value: u.Value})
	}
	return &packets.Publish{
		Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, PacketID: id, Duplicate: again,
		Properties: props,
	}
}

func fromPacket(p *packets.Publish) Message {
	m := Message{
		Topic: p.Topic, Payload: p.Payload, QoS: p.QoS, Retain: p.Retain, Retained: p.Retain,
		ContentType: p.Properties.ContentType, ResponseTopic: p.Properties.ResponseTopic,
		Correlation: p.Properties.CorrelationData,
		Text:        p.Properties.PayloadFormat != nil && *p.Properties.PayloadFormat == 1,
	}
	if e := p.Properties.MessageExpiry; e != nil {
		m.Expiry = time.Duration(*e) * time.Second
	}
	for _, u := range p.Properties.User {
		m.User = append(m.User, UserProperty(u))
	}
	return m
}
