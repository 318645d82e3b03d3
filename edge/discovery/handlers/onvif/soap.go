// SPDX-License-Identifier: Apache-2.0

package onvif

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // G505: the digest of WS-UsernameToken is one
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
)

// probeMessage asks for cameras. id is what answers refer to.
func probeMessage() (id string, message []byte) {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	id = fmt.Sprintf("uuid:%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	return id, []byte(`<?xml version="1.0" encoding="UTF-8"?>` +
		`<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:w="http://schemas.xmlsoap.org/ws/2004/08/addressing" ` +
		`xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery" xmlns:n="http://www.onvif.org/ver10/network/wsdl"><s:Header><w:MessageID>` + id +
		`</w:MessageID><w:To>urn:schemas-xmlsoap-org:ws:2005:04:discovery</w:To><w:Action>http://schemas.xmlsoap.org/ws/2005/04/discovery/Probe</w:Action>` +
		`</s:Header><s:Body><d:Probe><d:Types>n:NetworkVideoTransmitter</d:Types></d:Probe></s:Body></s:Envelope>`)
}

// cameraMessage is what cameras send: answers to a probe, and that they come or go.
type cameraMessage struct {
	relatesTo  string
	hello, bye bool
	matches    []cameraMatch
}

// cameraMatch is one camera's part of a message.
type cameraMatch struct {
	uuid      string
	scopes    map[string]bool
	addresses []string // URLs of its device service
}

type announcement struct {
	Address string `xml:"EndpointReference>Address"`
	Scopes  string `xml:"Scopes"`
	XAddrs  string `xml:"XAddrs"`
}

// The bounds of a message.
const (
	maxMatches   = 64
	maxScopes    = 64
	maxAddresses = 16
)

func parseMessage(data []byte) (m cameraMessage, err error) {
	var e struct {
		RelatesTo string         `xml:"Header>RelatesTo"`
		Matches   []announcement `xml:"Body>ProbeMatches>ProbeMatch"`
		Hello     *announcement  `xml:"Body>Hello"`
		Bye       *announcement  `xml:"Body>Bye"`
	}
	if err := xml.Unmarshal(data, &e); err != nil {
		return m, err
	}
	m.relatesTo, m.hello, m.bye = strings.TrimSpace(e.RelatesTo), e.Hello != nil, e.Bye != nil
	switch {
	case m.hello:
		e.Matches = []announcement{*e.Hello}
	case m.bye:
		e.Matches = []announcement{*e.Bye}
	}
	if len(e.Matches) > maxMatches {
		return m, fmt.Errorf("more than %d matches", maxMatches)
	}
	for _, a := range e.Matches {
		one, err := a.parse(m.hello || m.bye)
		if err != nil {
			return m, err
		}
		m.matches = append(m.matches, one)
	}
	return m, nil
}

// parse checks an announcement. One that a camera comes or goes may be without the addresses.
func (a announcement) parse(brief bool) (m cameraMatch, err error) {
	id := strings.ToLower(strings.TrimSpace(a.Address))
	if m.uuid = id[strings.LastIndex(id, ":")+1:]; m.uuid == "" || len(id) > 256 || network.CleanText(id, 256) != id {
		return m, errors.New("EndpointReference has no address")
	}
	m.scopes = map[string]bool{}
	for i, scope := range strings.Fields(a.Scopes) {
		if i == maxScopes {
			break
		}
		m.scopes[network.CleanText(scope, maxText)] = true
	}
	for address := range strings.FieldsSeq(a.XAddrs) {
		if u, err := url.Parse(address); err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") && len(address) <= maxText && len(m.addresses) < maxAddresses {
			m.addresses = append(m.addresses, network.CleanText(address, maxText))
		}
	}
	if len(m.addresses) == 0 && !brief {
		return m, errors.New("XAddrs has no URL")
	}
	return m, nil
}

// described are the properties that the scopes give: onvif://www.onvif.org/name/Hall%20camera.
func (m cameraMatch) described() map[string]string {
	p := map[string]string{}
	scopes, size := slices.Sorted(maps.Keys(m.scopes)), 0
	for i, scope := range scopes {
		if size += len(scope) + 1; size > 8<<10 {
			scopes = scopes[:i]
			break
		}
		rest, ok := strings.CutPrefix(scope, "onvif://www.onvif.org/")
		kind, value, _ := strings.Cut(rest, "/")
		if plain, err := url.PathUnescape(value); ok && err == nil && plain != "" && slices.Contains([]string{"name", "hardware", "location"}, kind) {
			if name := "ONVIF_DEVICE_" + strings.ToUpper(kind); p[name] == "" {
				p[name] = network.CleanText(plain, maxText)
			}
		}
	}
	p["ONVIF_DEVICE_SCOPES"] = strings.Join(scopes, " ")
	return p
}

// credential is a user of a camera.
type credential struct{ user, password string }

// credentials are those of discoveryProperties, by the cameras' UUIDs, and one for all others.
type credentials map[string]credential

const defaultCredential = "default"

func (c credentials) of(uuid string) (credential, bool) {
	if one, ok := c[uuid]; ok {
		return one, true
	}
	one, ok := c[defaultCredential]
	return one, ok
}

// parseCredentials understands what Akri's handler does: username_default and password_default, username_UUID and password_UUID with _ for -,
// device_credential_list (names of properties that have {"UUID":{"username":…,"password":…,"base64encoded":false}}) and
// device_credential_ref_list (… {"UUID":{"username_ref":…,"password_ref":…}}, which name properties).
func parseCredentials(properties map[string][]byte) (credentials, error) {
	c := credentials{}
	text := func(name string) string { return string(properties[name]) }
	err := eachCredential(properties, "device_credential_list", func(uuid string, raw json.RawMessage) error {
		var one struct {
			Username string `json:"username"`
			Password string `json:"password"`
			Base64   bool   `json:"base64encoded"`
		}
		if err := json.Unmarshal(raw, &one); err != nil {
			return errors.New("is no credential")
		}
		if one.Base64 {
			plain, err := base64.StdEncoding.DecodeString(one.Password)
			if err != nil {
				return errors.New("the password is no base64")
			}
			one.Password = string(plain)
		}
		c[uuid] = credential{one.Username, one.Password}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = eachCredential(properties, "device_credential_ref_list", func(uuid string, raw json.RawMessage) error {
		var one struct {
			Username string `json:"username_ref"`
			Password string `json:"password_ref"`
		}
		if err := json.Unmarshal(raw, &one); err != nil {
			return errors.New("is no reference")
		}
		if text(one.Username) == "" {
			return fmt.Errorf("there is no discoveryProperty %q", one.Username)
		}
		c[uuid] = credential{text(one.Username), text(one.Password)}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for name := range properties {
		if id, ok := strings.CutPrefix(name, "username_"); ok && id != "" {
			c[strings.ToLower(strings.ReplaceAll(id, "_", "-"))] = credential{text(name), text("password_" + id)}
		}
	}
	return c, nil
}

// eachCredential visits the entries of the properties that a property lists.
func eachCredential(properties map[string][]byte, name string, visit func(uuid string, raw json.RawMessage) error) error {
	list, ok := properties[name]
	if !ok {
		return nil
	}
	var names []string
	if err := json.Unmarshal(list, &names); err != nil {
		return handler.InvalidArgument("discoveryProperties: %s: must be a JSON list of names of discoveryProperties", name)
	}
	for _, name := range names {
		var entries map[string]json.RawMessage
		if err := json.Unmarshal(properties[name], &entries); err != nil {
			return handler.InvalidArgument("discoveryProperties: %s: must be a JSON object by the devices' UUIDs", name)
		}
		for uuid, raw := range entries {
			if err := visit(strings.ToLower(uuid), raw); err != nil {
				return handler.InvalidArgument("discoveryProperties: %s: %s: %v", name, uuid, err)
			}
		}
	}
	return nil
}

// ask asks a camera for its make and its MAC address.
func (l *discoverCall) ask(ctx context.Context, service string, c credential) (map[string]string, error) {
	var info struct {
		Manufacturer string `xml:"Body>GetDeviceInformationResponse>Manufacturer"`
		Model        string `xml:"Body>GetDeviceInformationResponse>Model"`
		Firmware     string `xml:"Body>GetDeviceInformationResponse>FirmwareVersion"`
		Serial       string `xml:"Body>GetDeviceInformationResponse>SerialNumber"`
	}
	if err := l.call(ctx, service, "GetDeviceInformation", c, &info); err != nil {
		return nil, err
	}
	var nets struct {
		MAC []string `xml:"Body>GetNetworkInterfacesResponse>NetworkInterfaces>Info>HwAddress"`
	}
	if err := l.call(ctx, service, "GetNetworkInterfaces", c, &nets); err != nil {
		return nil, err
	}
	p := map[string]string{}
	for name, value := range map[string]string{
		"MANUFACTURER": info.Manufacturer, "MODEL": info.Model, "FIRMWARE": info.Firmware, "SERIAL_NUMBER": info.Serial, "MAC_ADDRESS": strings.Join(nets.MAC[:min(1, len(nets.MAC))], ""),
	} {
		if value = strings.TrimSpace(value); value != "" {
			p["ONVIF_DEVICE_"+name] = network.CleanText(value, 255)
		}
	}
	return p, nil
}

// call makes one call of the device service.
func (l *discoverCall) call(ctx context.Context, service, name string, c credential, to any) error {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails
	created := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	digest := sha1.Sum(slices.Concat(nonce, []byte(created), []byte(c.password))) //nolint:gosec // G401: as the standard says
	body := `<?xml version="1.0" encoding="UTF-8"?><s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Header>` +
		`<Security s:mustUnderstand="1" xmlns="http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd"><UsernameToken><Username>` +
		html.EscapeString(c.user) + `</Username><Password Type="http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-username-token-profile-1.0#PasswordDigest">` +
		base64.StdEncoding.EncodeToString(digest[:]) + `</Password><Nonce EncodingType="http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-soap-message-security-1.0#Base64Binary">` +
		base64.StdEncoding.EncodeToString(nonce) + `</Nonce><Created xmlns="http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd">` + created +
		`</Created></UsernameToken></Security></s:Header><s:Body><` + name + ` xmlns="http://www.onvif.org/ver10/device/wsdl"/></s:Body></s:Envelope>`
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, service, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/soap+xml; charset=utf-8")
	answer, err := l.http.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", name, answer.Status)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	if err == nil {
		err = xml.Unmarshal(text, to)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
