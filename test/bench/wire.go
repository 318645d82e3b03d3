// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The generator speaks MQTT by itself: a client library would be what is measured.

const mqttVersion = 5

// dialClient connects a client with a clean session, which ends with the connection.
func dialClient(addr, id string) (net.Conn, error) { return dialAs(addr, id, "") }

// dialAs is dial with a user's name, which needs no password.
func dialAs(addr, id, user string) (net.Conn, error) { return dialWith(addr, id, user, "") }

func dialWith(addr, id, user, password string) (net.Conn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return c, connectOver(c, id, user, password, answerTimeout)
}

// dialWithin is dialClient for who tries a hub that may be gone.
func dialWithin(addr, id string, most time.Duration) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", addr, most)
	if err != nil {
		return nil, err
	}
	return c, connectOver(c, id, "", "", most)
}

// connectOver connects, or closes the connection.
func connectOver(c net.Conn, id, user, password string, most time.Duration) error {
	body := appendText(nil, "MQTT")
	flags := byte(0x02) // clean start
	if user != "" {
		flags |= 0x80
	}
	if password != "" {
		flags |= 0x40
	}
	body = append(body, mqttVersion, flags, 0, 0) // no keep-alive
	body = append(body, 0)                        // no properties
	body = appendText(body, id)
	if user != "" {
		body = appendText(body, user)
	}
	if password != "" {
		body = appendText(body, password)
	}
	answer, err := exchangeWithin(c, encodePacket(0x10, body), most)
	if err == nil && (answer[0] != 0x20 || answer[3] != 0) {
		err = fmt.Errorf("not connected: % x", answer)
	}
	if err != nil {
		return errors.Join(err, c.Close())
	}
	return nil
}

func subscribeClient(c net.Conn, filter string, qos byte) error {
	body := appendText([]byte{0, 1, 0}, filter)
	answer, err := exchangePacket(c, encodePacket(0x82, append(body, qos)))
	if err == nil && (answer[0] != 0x90 || answer[len(answer)-1] != qos) {
		err = fmt.Errorf("not subscribed: % x", answer)
	}
	return err
}

// exchangePacket sends a packet and reads the answer, which is short.
func exchangePacket(c net.Conn, p []byte) ([]byte, error) { return exchangeWithin(c, p, answerTimeout) }

const answerTimeout = 30 * time.Second

func exchangeWithin(c net.Conn, p []byte, most time.Duration) ([]byte, error) {
	_ = c.SetDeadline(time.Now().Add(most))
	defer c.SetDeadline(time.Time{}) //nolint:errcheck // a socket takes it
	if _, err := c.Write(p); err != nil {
		return nil, err
	}
	head := make([]byte, 2)
	if _, err := io.ReadFull(c, head); err != nil {
		return nil, err
	}
	if head[1] >= 0x80 {
		return nil, errors.New("an answer that is not short")
	}
	whole := append(head, make([]byte, head[1])...)
	_, err := io.ReadFull(c, whole[2:])
	return whole, err
}

func encodePacket(first byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{first}, uint64(len(body))), body...)
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}
