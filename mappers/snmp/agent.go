// SPDX-License-Identifier: Apache-2.0

package snmp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/gosnmp/gosnmp"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/settings"
)

// agent is one SNMP agent. The library's value is used by one at a time, and a panic of it ends a request and not the program.
type agent struct {
	config agentConfig
	params *gosnmp.GoSNMP
	// tries is how often a request for objects is sent within the time-out. Of a Device it is once, and the mapper asks again: an agent that is
	// slow would answer what was sent twice one after the other, and come ever later.
	tries int
	// user is who signs in with version 3, before the agent has said anything. An agent that has started again has another time, and is met
	// as if for the first time.
	user gosnmp.SnmpV3SecurityParameters
	// heard is how traps are signed; the library changes what is in params while it asks.
	heard trapSecurity

	mu        sync.Mutex
	connected bool
}

// trapSecurity is what a message must have to be an agent's.
type trapSecurity struct {
	version   gosnmp.SnmpVersion
	community string
	flags     gosnmp.SnmpV3MsgFlags
}

// trapParams are the library's for reading a trap.
func (a *agent) trapParams() *gosnmp.GoSNMP {
	g := &gosnmp.GoSNMP{Version: a.heard.version, Community: a.heard.community, MsgFlags: a.heard.flags}
	if a.user != nil {
		g.SecurityModel, g.SecurityParameters = gosnmp.UserSecurityModel, a.user.Copy()
	}
	return g
}

// newAgent makes an agent. It doesn't ask it anything.
func newAgent(c agentConfig, credentialsDir string) (*agent, error) {
	g := &gosnmp.GoSNMP{
		Target: c.host, Port: c.port, Version: gosnmp.Version2c, Community: "public", Transport: "udp", MaxOids: gosnmp.MaxOids, MaxRepetitions: 25,
	}
	if c.community != "" {
		g.Community = c.community
	}
	switch {
	case c.version == "3":
		if err := signIn(g, credentialsDir, c.credentials); err != nil {
			return nil, mappers.BadConfig(settings.DevicePath+"credentials", "%v", err)
		}
	case c.credentials != "":
		lines, err := settings.ReadCredentials(credentialsDir, c.credentials, 1)
		if err != nil {
			return nil, mappers.BadConfig(settings.DevicePath+"credentials", "%v", err)
		}
		g.Community = lines[0]
	}
	a := &agent{config: c, params: g, tries: readTries, heard: trapSecurity{g.Version, g.Community, g.MsgFlags}}
	if g.SecurityParameters != nil {
		a.user = g.SecurityParameters.Copy()
	}
	return a, nil
}

var (
	authProtocols = map[string]gosnmp.SnmpV3AuthProtocol{
		"MD5": gosnmp.MD5, "SHA": gosnmp.SHA, "SHA224": gosnmp.SHA224, "SHA256": gosnmp.SHA256, "SHA384": gosnmp.SHA384, "SHA512": gosnmp.SHA512,
	}
	privProtocols = map[string]gosnmp.SnmpV3PrivProtocol{
		"DES": gosnmp.DES, "AES": gosnmp.AES, "AES128": gosnmp.AES, "AES192": gosnmp.AES192, "AES256": gosnmp.AES256, "AES192C": gosnmp.AES192C, "AES256C": gosnmp.AES256C,
	}
)

// signIn reads who signs in with version 3: the user's name in the first line, then the authentication's protocol and password in one line
// each, then those of privacy.
func signIn(g *gosnmp.GoSNMP, dir, name string) error {
	lines, err := settings.ReadCredentials(dir, name, 1)
	if err != nil {
		return err
	}
	u := &gosnmp.UsmSecurityParameters{UserName: lines[0]}
	g.Version, g.SecurityModel, g.SecurityParameters = gosnmp.Version3, gosnmp.UserSecurityModel, u
	g.MsgFlags = gosnmp.NoAuthNoPriv
	protocolOf := func(line string) string { return strings.ReplaceAll(strings.ToUpper(strings.TrimSpace(line)), "-", "") }
	if len(lines) >= 3 {
		var ok bool
		if u.AuthenticationProtocol, ok = authProtocols[protocolOf(lines[1])]; !ok {
			return fmt.Errorf("credentials %s: line 2 must be MD5, SHA, SHA224, SHA256, SHA384 or SHA512", name)
		}
		u.AuthenticationPassphrase, g.MsgFlags = lines[2], gosnmp.AuthNoPriv
	}
	if len(lines) >= 5 {
		var ok bool
		if u.PrivacyProtocol, ok = privProtocols[protocolOf(lines[3])]; !ok {
			return fmt.Errorf("credentials %s: line 4 must be DES, AES, AES192, AES256, AES192C or AES256C", name)
		}
		u.PrivacyPassphrase, g.MsgFlags = lines[4], gosnmp.AuthPriv
	}
	if len(lines) == 2 || len(lines) == 4 || len(lines) > 5 {
		return fmt.Errorf("credentials %s: has %d lines, and must have 1 (user), 3 (and authentication) or 5 (and privacy)", name, len(lines))
	}
	return nil
}

// readTries is how often a request of commands and of walks is sent within the time-out: UDP loses messages. What is set is sent once.
const readTries = 2

// do makes a request, within the time-out.
func (a *agent) do(ctx context.Context, tries int, request func(*gosnmp.GoSNMP) error) (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, a.config.timeout)
	defer cancel()
	a.params.Context, a.params.Retries, a.params.Timeout = ctx, tries-1, a.config.timeout/time.Duration(tries)
	defer func() {
		if p := recover(); p != nil {
			a.disconnect()
			err = fmt.Errorf("the agent's answer can't be read: %v", p)
		}
	}()
	if !a.connected {
		if err := a.params.Connect(); err != nil {
			return mappers.NotSent(err)
		}
		a.connected = true
	}
	err = request(a.params)
	var network *net.OpError
	if errors.As(err, &network) { // such as a port that nobody listens on: the library's socket stays in error
		a.disconnect()
	}
	return err
}

func (a *agent) disconnect() {
	if a.connected {
		_ = a.params.Close()
		a.connected = false
		if a.user != nil {
			a.params.SecurityParameters = a.user.Copy()
		}
	}
}

// close ends the socket; the next request opens another, for a name that may have another address.
func (a *agent) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.disconnect()
}

// answer is an answer, unless it is not the user's whom the agent was asked as.
func (a *agent) answer(packet *gosnmp.SnmpPacket, err error) (*gosnmp.SnmpPacket, error) {
	if err == nil && a.heard.version == gosnmp.Version3 && !isOfUser(packet, a.user) {
		return nil, errors.New("an answer came that is not signed by the user")
	}
	return packet, err
}

// get reads objects.
func (a *agent) get(ctx context.Context, oids []string) (packet *gosnmp.SnmpPacket, err error) {
	err = a.do(ctx, a.tries, func(g *gosnmp.GoSNMP) (err error) {
		packet, err = a.answer(g.Get(oids))
		return err
	})
	if err == nil && packet.Error == gosnmp.NoError && len(packet.Variables) != len(oids) {
		err = fmt.Errorf("the agent answered %d objects, and was asked for %d", len(packet.Variables), len(oids))
	}
	return packet, err
}

// set sets an object, once.
func (a *agent) set(ctx context.Context, v gosnmp.SnmpPDU) (packet *gosnmp.SnmpPacket, err error) {
	err = a.do(ctx, 1, func(g *gosnmp.GoSNMP) (err error) {
		packet, err = a.answer(g.Set([]gosnmp.SnmpPDU{v}))
		return err
	})
	return packet, err
}

// maxWalked bounds what a walk takes.
const maxWalked = 20000

// walk reads all objects below one, request by request, so that each has its own time-out.
func (a *agent) walk(ctx context.Context, root string, found func(gosnmp.SnmpPDU) error) error {
	at := root
	for n := 0; n < maxWalked; {
		var packet *gosnmp.SnmpPacket
		err := a.do(ctx, readTries, func(g *gosnmp.GoSNMP) (err error) {
			packet, err = a.answer(g.GetBulk([]string{at}, 0, g.MaxRepetitions))
			return err
		})
		if err != nil {
			return err
		}
		if packet.Error != gosnmp.NoError || len(packet.Variables) == 0 {
			return nil
		}
		for _, v := range packet.Variables {
			if v.Type == gosnmp.EndOfMibView || !strings.HasPrefix(v.Name, root+".") {
				return nil
			}
			if v.Name == at { // an agent that goes in circles
				return fmt.Errorf("the agent repeats %s", v.Name)
			}
			if err := found(v); err != nil {
				return err
			}
			at = v.Name
			n++
		}
	}
	return fmt.Errorf("there are more than %d objects below %s", maxWalked, root)
}
