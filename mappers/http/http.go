// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
	"github.com/edgebus/edgebus/mappers/settings"
)

// Options configure the driver.
type Options struct {
	// Hooks is the address at which devices send values; empty: none.
	Hooks string
	// CredentialsDir has the files that Devices name.
	CredentialsDir string
	// Timeout is how long a device may take to answer where its Device doesn't say.
	Timeout time.Duration
}

// Driver makes sessions.
type Driver struct {
	o     Options
	hooks *hookServer
}

// New makes a driver. It listens for what devices send once one of them wants it.
func New(o Options) *Driver { return &Driver{o, newHookServer(o.Hooks)} }

// Protocols implements mappers.Driver.
func (d *Driver) Protocols() []string { return []string{"http", "https", "rest"} }

// Open implements mappers.Driver.
func (d *Driver) Open(_ context.Context, dev mappers.Device) (mappers.Session, error) {
	c, err := parseDevice(dev, d.o.Timeout)
	if err != nil {
		return nil, err
	}
	s := &session{driver: d, device: dev, config: c}
	if c.credentials != "" {
		least := 1
		if c.auth == authBasic {
			least = 2
		}
		if s.secret, err = settings.ReadCredentials(d.o.CredentialsDir, c.credentials, least); err != nil {
			return nil, mappers.BadConfig(settings.DevicePath+"credentials", "%v", err)
		}
	}
	if c.hook != "" {
		lines, err := settings.ReadCredentials(d.o.CredentialsDir, c.hook, 1)
		if err != nil {
			return nil, mappers.BadConfig(settings.DevicePath+"hook", "%v", err)
		}
		if s.hook = lines[0]; len(s.hook) < 16 {
			return nil, mappers.BadConfig(settings.DevicePath+"hook", "the secret in the file must have at least 16 characters")
		}
	}
	roots, err := d.loadRoots(c.ca)
	if err != nil {
		return nil, mappers.BadConfig(settings.DevicePath+"ca", "%v", err)
	}
	s.transport = &http.Transport{
		DialContext: (&net.Dialer{}).DialContext, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: 64 << 10,
	}
	s.client = &http.Client{Transport: s.transport, CheckRedirect: sameHost}
	return s, nil
}

func (d *Driver) loadRoots(name string) (*x509.CertPool, error) {
	if name == "" {
		return nil, nil
	}
	b, err := os.ReadFile(filepath.Join(d.o.CredentialsDir, filepath.Base(name)))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s has no certificate in PEM", name)
	}
	return pool, nil
}

// sameHost follows redirections of a device to itself only: what signs in is not for others.
func sameHost(r *http.Request, via []*http.Request) error {
	if len(via) >= 5 || r.URL.Host != via[0].URL.Host || r.URL.Scheme != via[0].URL.Scheme {
		return http.ErrUseLastResponse
	}
	return nil
}

// session is an open device.
type session struct {
	driver    *Driver
	device    mappers.Device
	config    deviceConfig
	secret    []string
	hook      string
	transport *http.Transport
	client    *http.Client
}

// Close implements mappers.Session.
func (s *session) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// Reconnect implements mappers.Reconnector.
func (s *session) Reconnect() { s.transport.CloseIdleConnections() }

// Timeout implements mappers.Timeouter.
func (s *session) Timeout() time.Duration { return s.config.timeout }

// maxAnswer bounds what a device answers or sends.
const maxAnswer = 1 << 20

// do makes a request, and reads the answer.
func (s *session) do(ctx context.Context, method, target, body, contentType string) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.timeout)
	defer cancel()
	var payload io.Reader
	if body != "" {
		payload = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(s.config.base.String(), "/")+target, payload)
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Accept", "application/json, */*;q=0.5")
	if body != "" {
		r.Header.Set("Content-Type", contentType)
	}
	s.authorize(r)
	response, err := s.client.Do(r)
	if err != nil {
		return 0, nil, plainError(err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(answer) > maxAnswer {
		err = mappers.Refuse(mappers.Invalid, "%s: the answer has more than %d bytes", target, maxAnswer)
	}
	return response.StatusCode, answer, err
}

// plainError leaves out the URL, which the Device has, and keeps what kind of error it is.
func plainError(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}

func (s *session) authorize(r *http.Request) {
	switch s.config.auth {
	case authBasic:
		r.SetBasicAuth(s.secret[0], s.secret[1])
	case authBearer:
		r.Header.Set("Authorization", "Bearer "+s.secret[0])
	case authHeader:
		r.Header.Set(s.config.header, s.secret[0])
	}
}

// verdict is what a status means: nil for success.
func verdict(method, target string, status int, answer []byte) error {
	says := fmt.Sprintf("%s %s: %d %s", method, target, status, http.StatusText(status))
	if text := strings.Join(strings.Fields(string(answer[:min(len(answer), 200)])), " "); text != "" && status >= 400 {
		says += ": " + strings.ToValidUTF8(text, "?")
	}
	switch {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable, status == http.StatusLocked:
		return mappers.Busy(errors.New(says))
	case status == http.StatusBadGateway, status == http.StatusGatewayTimeout:
		return mappers.NotTheDevice(errors.New(says))
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return mappers.Refuse(mappers.NotReachable, "%s", says)
	case status >= 500:
		return mappers.Refuse(mappers.Unavailable, "%s", says)
	}
	return mappers.Refuse(mappers.Rejected, "%s", says)
}

// Ping implements mappers.Pinger: any answer counts.
func (s *session) Ping(ctx context.Context) error {
	target := "/"
	for _, f := range s.config.order {
		if f.get != "" {
			target = f.get
			break
		}
	}
	status, _, err := s.do(ctx, http.MethodGet, target, "", "")
	if err == nil && (status == http.StatusBadGateway || status == http.StatusGatewayTimeout) {
		err = verdict(http.MethodGet, target, status, nil)
	}
	return err
}

// Group implements mappers.Grouper: properties with the same path are of one request.
func (s *session) Group(properties []string) (groups [][]string) {
	at := map[string]int{}
	for _, name := range properties {
		f := s.config.fields[name]
		if f == nil || f.get == "" {
			continue
		}
		i, ok := at[f.get]
		if !ok {
			i = len(groups)
			at[f.get] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], name)
	}
	return groups
}

// ReadBatch implements mappers.BatchReader.
func (s *session) ReadBatch(ctx context.Context, properties []string) (map[string]mappers.Reading, error) {
	got := make(map[string]mappers.Reading, len(properties))
	messages := map[string]*jsonpath.Message{}
	refused := map[string]error{}
	for _, name := range properties {
		f := s.config.fields[name]
		if f == nil {
			got[name] = mappers.Reading{Err: mappers.Refuse(mappers.NotReachable, "the model has no http visitor for %s", name)}
			continue
		}
		if f.get == "" { // it comes by itself
			continue
		}
		if messages[f.get] == nil && refused[f.get] == nil {
			status, answer, err := s.do(ctx, http.MethodGet, f.get, "", "")
			if err == nil {
				err = verdict(http.MethodGet, f.get, status, answer)
			}
			var refusal *mappers.Refusal
			switch {
			case errors.As(err, &refusal):
				refused[f.get] = refusal
			case err != nil:
				return nil, err
			default:
				messages[f.get] = &jsonpath.Message{Source: f.get, Payload: answer}
			}
		}
		if err := refused[f.get]; err != nil {
			got[name] = mappers.Reading{Err: err}
			continue
		}
		if r, ok := f.reading(messages[f.get]); ok {
			got[name] = r
		} else {
			got[name] = mappers.Reading{Err: mappers.Refuse(mappers.Unknown, "%s: the answer has no %v", f.get, f.path)}
		}
	}
	return got, nil
}

// reading finds a property's value in a message; false: it says nothing about it.
func (f *field) reading(m *jsonpath.Message) (mappers.Reading, bool) {
	value, _, ok, err := m.Find(f.path)
	if err != nil {
		return mappers.Reading{Err: err}, true
	}
	if f.spec.Type.Numeric() || f.path == nil {
		value = strings.TrimSpace(value)
	}
	if f.spec.Type == mappers.Boolean && (value == "1" || value == "0") {
		value = map[string]string{"1": "true", "0": "false"}[value]
	}
	return mappers.Reading{Value: value}, ok
}

// request makes the write of a value, or a command with its input.
func (s *session) request(ctx context.Context, f *field, value string) ([]byte, error) {
	literal := value
	if !f.spec.Type.Numeric() && f.spec.Type != mappers.Boolean && f.spec.Type != mappers.Object && f.spec.Type != mappers.Array {
		literal = jsonpath.QuoteText(value)
	}
	body := cmp.Or(f.body, value)
	if f.body != "" {
		body = strings.NewReplacer("{value}", value, "{json}", literal).Replace(f.body)
	}
	target := strings.NewReplacer("{value}", url.QueryEscape(value)).Replace(f.target)
	if f.method == http.MethodGet || f.method == http.MethodDelete && f.body == "" {
		body = ""
	}
	status, answer, err := s.do(ctx, f.method, target, body, f.contentType)
	if err != nil {
		return nil, err
	}
	return answer, verdict(f.method, f.target, status, answer)
}

// Write implements mappers.Writer.
func (s *session) Write(ctx context.Context, property, value string) error {
	f := s.config.fields[property]
	if f == nil || f.method == "" {
		return mappers.Refuse(mappers.NotReachable, "%s has no write in the model's http visitor, such as PUT /relay/0", property)
	}
	_, err := s.request(ctx, f, value)
	if err == nil && f.get == "" { // nothing shows it but what the device sends
		return mappers.ErrUnconfirmed
	}
	return err
}

// Command implements mappers.Commander. What the device answers is the answer.
func (s *session) Command(ctx context.Context, name string, payload []byte) ([]byte, error) {
	f := s.config.commands[name]
	if f == nil {
		return nil, mappers.Refuse(mappers.NotReachable, "the model has no http visitor for the command %s", name)
	}
	answer, err := s.request(ctx, f, string(payload))
	return bytes.TrimSpace(answer), err
}
