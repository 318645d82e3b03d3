// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/test/flood"
)

const (
	ownTopics = 20 // clients with a topic of their own
	ownEvery  = 100 * time.Millisecond
	treeEvery = 10 * time.Millisecond
	loopEvery = 50 * time.Millisecond
)

// neighbourProcess is a program with clients that behave.
type neighbourProcess struct {
	*benchProcess
	target flood.Target
	conns  []net.Conn
	groups []victimGroup

	user, password string // of the clients; empty: they are anonymous
}

// victimGroup are clients that do the same.
type victimGroup struct {
	what    string
	every   time.Duration
	pingers []*pinger
}

func (n *neighbourProcess) close() {
	closeAll(n.conns)
	n.stop()
}

func hubNeighbourhood(b benchRun, cpu string) (n *neighbourProcess, err error) {
	n, err = openNeighbourhood(filepath.Join(b.bin, "cloudhub"), cpu, nil)
	if err != nil {
		return nil, err
	}
	if err := awaitReady("http://" + n.target.HTTP + "/readyz"); err != nil {
		return nil, err
	}
	if err := postObject(n.target.HTTP, "devicemodels", benchModel(2)); err != nil {
		return nil, err
	}
	if err := postObject(n.target.HTTP, "devices", benchDevice(0)); err != nil {
		return nil, err
	}
	return n, n.inhabit("v1/nodes/n1/devices/d0/desired/p")
}

// fleetNeighbourhood is a hub with a large tree.
func fleetNeighbourhood(b benchRun, cpu string) (n *neighbourProcess, err error) {
	n, err = openNeighbourhood(filepath.Join(b.bin, "cloudhub"), cpu, makeFleet)
	if err != nil {
		return nil, err
	}
	return n, n.inhabit("v1/nodes/plant-0000/devices/d0/desired/p")
}

func coreNeighbourhood(b benchRun, cpu string) (n *neighbourProcess, err error) {
	seeded := func(dir string) error { return seedCore(dir, 1, 3) }
	n, err = openNeighbourhood(filepath.Join(b.bin, "edgecore"), cpu, seeded, "--node-name", "n1", "--link-server", "")
	if err != nil {
		return nil, err
	}
	if err := n.inhabit("v1/nodes/n1/devices/d0/reported/p"); err != nil {
		return nil, err
	}
	return n, n.driven("v1/nodes/n1/devices/d0/desired/p2", "v1/nodes/n1/devices/d0/reported/p2")
}

func openNeighbourhood(program, cpu string, prepare func(dir string) error, args ...string) (*neighbourProcess, error) {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return nil, err
	}
	n := &neighbourProcess{}
	for _, address := range []*string{&n.target.MQTT, &n.target.WebSocket, &n.target.HTTP} {
		if *address, err = freeAddress(); err != nil {
			return nil, err
		}
	}
	if prepare != nil {
		if err := prepare(dir); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	args = append([]string{
		"--data-dir", dir, "--mqtt-listen", n.target.MQTT, "--mqtt-websocket-listen", n.target.WebSocket,
		"--http-listen", n.target.HTTP,
	}, args...)
	n.benchProcess, err = startBroker(dir, n.target.MQTT, cpu, program, args...)
	return n, err
}

// inhabit connects those who are there everywhere. Of the device's properties the first
// is theirs, the second the flood's.
func (n *neighbourProcess) inhabit(property string) error {
	n.target.Tree = property + "1"
	own := victimGroup{what: "own topic", every: ownEvery}
	for i := range ownTopics {
		topic := fmt.Sprintf("plant/victim/%d", i)
		p, err := n.pinger("victim-"+strconv.Itoa(i), topic, make([]byte, payloadSize), topic)
		if err != nil {
			return err
		}
		own.pingers = append(own.pingers, p)
	}
	p, err := n.pinger("victim-tree", property+"0", []byte("1"), "")
	if err != nil {
		return err
	}
	n.groups = append(n.groups, own, victimGroup{"tree", treeEvery, []*pinger{p}})
	for range 500 { // a device's Node may not have it yet
		if _, err = p.trip(); err == nil {
			return nil
		}
		time.Sleep(treeEvery)
	}
	return fmt.Errorf("the tree takes no values: %w", err)
}

// driven adds a device with a mapper that does at once what is wanted, and somebody who wants it.
func (n *neighbourProcess) driven(desired, reported string) error {
	mapper, err := dialClient(n.addr, "victim-mapper")
	if err != nil {
		return err
	}
	n.conns = append(n.conns, mapper)
	if err := subscribeClient(mapper, desired, 1); err != nil {
		return err
	}
	go driveDevice(mapper, reported)
	p, err := n.pinger("victim-wants", desired, []byte("1"), reported)
	n.groups = append(n.groups, victimGroup{"desired → reported", loopEvery, []*pinger{p}})
	return err
}

// driveDevice reports whatever is wanted, until the connection ends.
func driveDevice(c net.Conn, reported string) {
	r := &packetReader{conn: c}
	for {
		first, body, err := r.read()
		if err != nil {
			return
		}
		if first>>4 != 3 {
			continue
		}
		at := 2 + int(binary.BigEndian.Uint16(body))
		id := body[at : at+2]
		properties, size := binary.Uvarint(body[at+2:])
		value := body[at+2+size+int(properties):]
		out := append([]byte{0x40, 2}, id...)
		answer := append(appendText(nil, reported), 0, 1, 0)
		if _, err := c.Write(append(out, encodePacket(0x32, append(answer, value...))...)); err != nil {
			return
		}
	}
}

// pinger is a client that sends one message after the other and sees how long each takes.
type pinger struct {
	packetReader
	packet  []byte
	arrival bool // something comes of it, and that is what is timed
}

// pinger connects a client that publishes, and is answered on a topic; "": by the PUBACK.
func (n *neighbourProcess) pinger(id, topic string, payload []byte, answered string) (*pinger, error) {
	conn, err := dialWith(n.addr, id, n.user, n.password)
	if err != nil {
		return nil, err
	}
	n.conns = append(n.conns, conn)
	if answered != "" {
		if err := subscribeClient(conn, answered, 1); err != nil {
			return nil, err
		}
	}
	body := append(appendText(nil, topic), 0, 1, 0)
	return &pinger{packetReader{conn: conn}, encodePacket(0x32, append(body, payload...)), answered != ""}, nil
}

const tripTimeout = 20 * time.Second

// trip sends a message and waits for its acknowledgement, and for what comes of it. No
// value is the one before, for that would be nothing to store.
func (p *pinger) trip() (took time.Duration, err error) {
	_ = p.conn.SetDeadline(time.Now().Add(tripTimeout))
	p.packet[len(p.packet)-1] ^= '1' ^ '2'
	began := time.Now()
	if _, err := p.conn.Write(p.packet); err != nil {
		return 0, err
	}
	for acked, arrived := false, !p.arrival; !acked || !arrived; {
		first, body, err := p.read()
		if err != nil {
			return 0, err
		}
		switch first >> 4 {
		case 4:
			if acked = true; len(body) > 2 && body[2] >= 0x80 {
				return 0, fmt.Errorf("refused: % x", body[2])
			}
			if !p.arrival {
				took = time.Since(began)
			}
		case 3:
			arrived, took = true, time.Since(began)
			at := 2 + int(body[0])<<8 + int(body[1])
			if _, err := p.conn.Write([]byte{0x40, 2, body[at], body[at+1]}); err != nil {
				return 0, err
			}
		}
	}
	return took, nil
}

// run makes trips until the time is over, spread from the others'.
func (p *pinger) run(d, every, offset time.Duration) (list []time.Duration, err error) {
	began := time.Now()
	for due := offset; due < d; due += every {
		time.Sleep(time.Until(began.Add(due)))
		took, err := p.trip()
		if err != nil {
			return nil, err
		}
		list = append(list, took)
		for due+every < time.Since(began) { // what came too late is not made up for
			due += every
		}
	}
	return list, nil
}

// packetReader reads small packets. What it returns is valid until the next.
type packetReader struct {
	conn net.Conn
	buf  [4096]byte
}

func (r *packetReader) read() (first byte, body []byte, err error) {
	head := r.buf[:2]
	if _, err := io.ReadFull(r.conn, head); err != nil {
		return 0, nil, err
	}
	n := int(head[1])
	if n >= 0x80 {
		if _, err := io.ReadFull(r.conn, r.buf[2:3]); err != nil {
			return 0, nil, err
		}
		n = n&0x7F | int(r.buf[2])<<7
	}
	if 3+n > len(r.buf) {
		return 0, nil, fmt.Errorf("a packet of %d bytes", n)
	}
	body = r.buf[3 : 3+n]
	_, err = io.ReadFull(r.conn, body)
	return r.buf[0], body, err
}
