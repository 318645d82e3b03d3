package client

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/eclipse/paho.golang/packets"
)

// read is the only goroutine that reads from the connection.
func (l *link) read() {
	for {
		cp, err := readPacket(l.r, l.c.o.MaxPacket)
		if err == nil {
			err = l.handle(cp)
		}
		if err != nil {
			l.fail(l.explain(err))
			return
		}
	}
}

func (l *link) explain(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the broker was silent for one and a half keep-alives (%s): %w", l.keepAlive, err)
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		return fmt.Errorf("the broker closed the connection without a reason: %w", err)
	}
	return err
}

func (l *link) handle(cp *packets.ControlPacket) error {
	switch p := cp.Content.(type) {
	case *packets.Publish:
		return l.publish(p)
	case *packets.Puback:
		l.finish(p.PacketID, p.ReasonCode, p.Properties.ReasonString)
	case *packets.Pubrec:
		l.pubrec(p)
	case *packets.Pubcomp:
		l.finish(p.PacketID, p.ReasonCode, p.Properties.ReasonString)
	case *packets.Pubrel:
		l.pubrel(p)
	case *packets.Suback:
		l.answer(p.PacketID, p.Reasons, p.Properties.ReasonString)
	case *packets.Unsuback:
		l.answer(p.PacketID, p.Reasons, p.Properties.ReasonString)
	case *packets.Disconnect:
		return disconnectError(p, l.c.o.ClientID)
	case *packets.Pingresp:
	default:
		return fmt.Errorf("mqtt: packet type %d was not expected from the broker", cp.Type)
	}
	return nil
}

func disconnectError(p *packets.Disconnect, clientID string) error {
	err := errors.New("the broker disconnected us: " + said(p.ReasonCode, p.Properties.ReasonString))
	if p.ReasonCode == packets.DisconnectSessionTakenOver {
		err = fmt.Errorf("%w: another client uses the client id %q: give each its own", err, clientID)
	}
	return err
}

// publish queues an incoming message for OnMessage.
func (l *link) publish(p *packets.Publish) error {
	if p.Topic == "" {
		return errors.New("mqtt: publish without a topic from the broker (no topic alias was offered)")
	}
	c := l.c
	c.mu.Lock()
	_, known := c.received[p.PacketID]
	if p.QoS == 2 && known { // its PUBREC got lost
		l.control = append(l.control, &packets.Pubrec{PacketID: p.PacketID, Properties: &packets.Properties{}})
		c.mu.Unlock()
		l.wakeWriter()
		return nil
	}
	if p.QoS > 0 {
		l.unacked++
	}
	over := l.unacked > int(c.o.ReceiveMaximum)
	c.mu.Unlock()
	if over {
		return fmt.Errorf("mqtt: the broker sends more than the %d unacknowledged messages it was allowed", c.o.ReceiveMaximum)
	}
	m := fromPacket(p)
	if c.answered(m) {
		l.acknowledge(p.QoS, p.PacketID)
		return nil
	}
	if !c.events.push(event{kind: message, link: l, message: m, id: p.PacketID}) {
		c.seldom.Warn().Int64("dropped", c.o.Counters.Dropped.Load()).
			Msg("QoS 0 messages are dropped: more come than are handled, and too many wait")
	}
	return nil
}

// acknowledge tells the broker that a message was handled.
func (l *link) acknowledge(qos byte, id uint16) {
	if qos == 0 {
		return
	}
	l.c.mu.Lock()
	l.unacked--
	if qos == 1 {
		l.control = append(l.control, &packets.Puback{PacketID: id, Properties: &packets.Properties{}})
	} else {
		l.c.received[id] = struct{}{}
		l.control = append(l.control, &packets.Pubrec{PacketID: id, Properties: &packets.Properties{}})
	}
	l.c.mu.Unlock()
	l.wakeWriter()
}

func (l *link) pubrel(p *packets.Pubrel) {
	l.c.mu.Lock()
	delete(l.c.received, p.PacketID)
	l.control = append(l.control, &packets.Pubcomp{PacketID: p.PacketID, Properties: &packets.Properties{}})
	l.c.mu.Unlock()
	l.wakeWriter()
}

func (l *link) pubrec(p *packets.Pubrec) {
	if p.ReasonCode >= 0x80 {
		l.finish(p.PacketID, p.ReasonCode, p.Properties.ReasonString)
		return
	}
	l.c.mu.Lock()
	rel := &packets.Pubrel{PacketID: p.PacketID, Properties: &packets.Properties{}}
	if f := l.c.out.inflight[p.PacketID]; f != nil {
		f.released = true
	} else {
		rel.ReasonCode = 0x92
	}
	l.control = append(l.control, rel)
	l.c.mu.Unlock()
	l.wakeWriter()
}

// finish ends an outgoing publish with the broker's answer.
func (l *link) finish(id uint16, code byte, reason string) {
	l.c.mu.Lock()
	f := l.c.out.inflight[id]
	if f != nil {
		delete(l.c.out.inflight, id)
		l.quota++
	}
	l.c.mu.Unlock()
	if f == nil {
		return
	}
	l.wakeWriter()
	if code >= 0x80 {
		f.done(&Refused{Op: "publish to", Topic: f.m.Topic, Code: code, Reason: reason})
		return
	}
	f.done(nil)
}

// answer hands SUBACK and UNSUBACK to who waits.
func (l *link) answer(id uint16, codes []byte, reason string) {
	l.c.mu.Lock()
	ch := l.c.waiting[id]
	delete(l.c.waiting, id)
	l.c.mu.Unlock()
	if ch != nil {
		ch <- answer{codes: codes, reason: reason}
	}
}
