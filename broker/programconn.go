// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"net"
	"strings"
)

// programPrefix begins the client identifiers, and the users' names, of what the program itself does at its broker by Dial.
const programPrefix = "view-"

// programConn is a connection of the program itself.
type programConn struct {
	net.Conn
	identity Identity
}

// programAddr stands for the address of the program itself.
type programAddr struct{}

func (programAddr) Network() string { return "program" }
func (programAddr) String() string  { return "program" }

func (*programConn) RemoteAddr() net.Addr { return programAddr{} }
func (*programConn) LocalAddr() net.Addr  { return programAddr{} }

// Dial connects the program itself as a client with an identity, whatever its CONNECT says: what it does is allowed, limited and recorded as
// that of any other client. The user's name and the client identifier begin with view-.
func (b *Broker) Dial(id Identity) net.Conn {
	client, server := net.Pipe()
	go b.requests.program.serveConn(&programConn{server, id}) // it ends with the broker, which waits for its connections
	return client
}

// reservedForProgram reports whether a client identifier is the program's own, and the identity is not.
func reservedForProgram(id *Identity) bool {
	return strings.HasPrefix(id.ClientID, programPrefix) && id.Listener != programListener
}

const programListener = "program"
