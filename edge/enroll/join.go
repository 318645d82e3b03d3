// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	cryptorand "crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// JoinOptions are what Join needs.
type JoinOptions struct {
	Hub     string // host:port of its MQTT listener with TLS
	DataDir string
	// Node is the name that the node is to have; empty: the token's, or else Default.
	Node, Default string
	Token         string // empty: the request needs approval
	// Pin is the fingerprint of the hub's authority, for a node without a token; empty: Confirm is asked.
	Pin string
	// Confirm reports whether a fingerprint is the hub's authority's.
	Confirm    func(fingerprint string) error
	Labels     map[string]string
	LabelFrom  map[string]string // key of a label, field of the system information
	SystemInfo *resource.SystemInfo
	// Say tells a person how it goes.
	Say func(format string, args ...any)
	Log zerolog.Logger
	Now func() time.Time
}

// JoinResult is what came of it.
type JoinResult struct {
	Identity
	Node    string
	Expires time.Time
	Already bool // it had joined before, and nothing was asked of the hub

	lock *datadir.Dir
}

// Close lets another join of this data directory begin. Until then it would write the same files.
func (j JoinResult) Close() error { return j.lock.Close() }

const (
	dialTimeout  = 15 * time.Second
	enrollPrefix = "enroll/" // of the user name and the client identifier of a node that enrols
)

// refusalError is the hub's no: the key of the request is of no use then.
type refusalError struct{ reason string }

func (r refusalError) Error() string { return "the hub refused this node: " + r.reason }

// Join gets a node its certificate. It leaves what there was as it is if it fails. A request whose answer was lost, or
// is waited for, is taken up by the next call. The caller closes what it returns.
func Join(ctx context.Context, o JoinOptions) (j JoinResult, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	pin, err := o.parse()
	if err != nil {
		return j, err
	}
	root, err := o.findAuthority(ctx, pin)
	if err != nil {
		return j, err
	}
	j = JoinResult{Identity: identityOf(o.DataDir, sha256.Sum256(root.Raw)), Node: o.Node}
	if err := os.MkdirAll(j.Dir, 0o700); err != nil {
		return j, fmt.Errorf("the node's key can't be kept: %w. Run it as the user who owns the data directory, or give another one with --data-dir", err)
	}
	if j.lock, err = datadir.Lock(j.Dir, "edgecore join"); err != nil {
		return j, err
	}
	defer func() {
		if err != nil {
			_ = j.Close()
		}
	}()
	if j.Expires, j.Already = o.joinedBefore(j.Identity); j.Already {
		return j, nil
	}
	key, text, err := pendingKey(j.Identity)
	if err != nil {
		return j, err
	}
	answer, err := o.ask(ctx, key, root)
	if err != nil {
		if errors.As(err, new(refusalError)) {
			_ = os.Remove(filepath.Join(j.Dir, pendingName)) // or it is used for the next request
			_ = os.Remove(filepath.Join(j.Dir, datadir.LockName))
			_ = os.Remove(j.Dir) // if there is nothing else in it
		}
		return j, err
	}
	got, err := checkAnswer(answer, o.Node, key, text)
	if err != nil {
		return j, err
	}
	if err := got.write(j.Identity); err != nil {
		return j, err
	}
	if o.Token != "" {
		err = datadir.WriteFile(filepath.Join(j.Dir, usedTokenName), []byte(o.tokenHash()))
	}
	j.Expires = got.cert.NotAfter
	return j, errors.Join(err, os.Remove(filepath.Join(j.Dir, pendingName)))
}

// parse checks what was given, and takes the pin and the node's name out of a token.
func (o *JoinOptions) parse() (pin []byte, err error) {
	given := o.Hub
	o.Hub = HubAddress(o.Hub)
	if strings.Contains(o.Hub, "/") {
		return nil, fmt.Errorf("%.100q is no hub's address: without http:// or the like, give the host, and the port of its MQTT over TLS if it isn't 8883, such as hub.example.org:8883", given)
	}
	if o.Pin != "" {
		sum, err := resource.ParseFingerprint(o.Pin)
		if err != nil {
			return nil, fmt.Errorf("--ca-hash: %w", err)
		}
		pin = sum[:]
	}
	if o.Token == "" {
		return pin, o.checkName()
	}
	t, err := resource.ParseJoinToken(o.Token)
	switch {
	case err != nil:
		return nil, err
	case pin != nil && string(pin) != string(t.Authority[:]):
		return nil, errors.New("--ca-hash and the token are of different hubs")
	}
	if t.Node != "" && o.Node != "" && o.Node != t.Node {
		return nil, fmt.Errorf("the token is for the node %s, not for %s", t.Node, o.Node)
	}
	o.Token, o.Node = t.String(), cmp.Or(o.Node, t.Node)
	return t.Authority[:], o.checkName()
}

// HubAddress is where a hub is, with the usual port if none is given.
func HubAddress(hub string) string {
	hub = strings.TrimPrefix(hub, "mqtts://")
	if _, _, err := net.SplitHostPort(hub); err != nil {
		return net.JoinHostPort(strings.Trim(hub, "[]"), "8883")
	}
	return hub
}

// Name is the name that the node will have.
func (o JoinOptions) Name() (string, error) { //nolint:gocritic // a copy: reading fills it in
	_, err := o.parse()
	return o.Node, err
}

func (o *JoinOptions) checkName() error {
	o.Node = cmp.Or(o.Node, o.Default)
	if !topics.ValidName(o.Node) {
		return fmt.Errorf("%.100q is no node's name: %s: give one with --name", o.Node, topics.NameRule())
	}
	return nil
}

func (o *JoinOptions) tokenHash() string {
	sum := sha256.Sum256([]byte(o.Token))
	return hex.EncodeToString(sum[:])
}

// joinedBefore reports whether the node has joined this hub, under this name and with this token, if it has one.
func (o *JoinOptions) joinedBefore(i Identity) (expires time.Time, yes bool) {
	cert, err := i.read()
	if err != nil || cert.Subject.CommonName != o.Node || o.Now().After(cert.NotAfter) {
		return expires, false
	}
	used, err := os.ReadFile(filepath.Join(i.Dir, usedTokenName))
	if o.Token != "" && (err != nil || string(used) != o.tokenHash()) {
		return expires, false
	}
	return cert.NotAfter, true
}

// pendingKey is the key of a request that was not answered, or a new one.
func pendingKey(i Identity) (key *ecdsa.PrivateKey, text []byte, err error) {
	path := filepath.Join(i.Dir, pendingName)
	text, err = os.ReadFile(path)
	if err == nil {
		if key, err = parseKey(text); err == nil {
			return key, text, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if key, text, err = newKey(); err != nil {
		return nil, nil, err
	}
	return key, text, datadir.WriteFile(path, text)
}

// findAuthority connects to the hub and finds its authority in what it shows. Nothing secret is sent.
func (o *JoinOptions) findAuthority(ctx context.Context, pin []byte) (root *x509.Certificate, err error) {
	chain, err := o.chain(ctx)
	if err != nil {
		return nil, err
	}
	root = chain[len(chain)-1]
	if pin != nil {
		if root = resource.PinnedAuthority(chain, pin); root == nil {
			return nil, fmt.Errorf("%s is not the hub that was meant: its authority is %s, and should be sha256:%x. "+
				"Somebody may be between this node and the hub, or the token is another hub's. Nothing was sent to it",
				o.Hub, resource.Fingerprint(chain[len(chain)-1].Raw), pin)
		}
	} else {
		if !root.IsCA {
			return nil, fmt.Errorf("%s doesn't show its authority: give the fingerprint with --ca-hash, or a token", o.Hub)
		}
		if err := o.Confirm(resource.Fingerprint(root.Raw)); err != nil {
			return nil, err
		}
	}
	return root, o.verify(chain, root)
}

// chain is what the hub shows, not verified. A hub that hangs up may have too many connections for a moment, as when a
// thousand nodes join at once: it is asked again.
func (o *JoinOptions) chain(ctx context.Context) (chain []*x509.Certificate, err error) {
	for n := 0; ; n++ {
		chain, err = o.chainOnce(ctx)
		if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) || n == maxHubAttempts {
			return chain, err
		}
		if !backoff.Sleep(ctx, hubRetry.Spread(n)) {
			return nil, ctx.Err()
		}
	}
}

const maxHubAttempts = 6 // further attempts to reach a hub that hangs up

var hubRetry = backoff.Backoff{Min: 500 * time.Millisecond, Max: 16 * time.Second}

func (o *JoinOptions) chainOnce(ctx context.Context) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}} //nolint:gosec // verified by its pin, before anything is sent
	conn, err := d.DialContext(ctx, "tcp", o.Hub)
	if err != nil {
		var record tls.RecordHeaderError
		if errors.As(err, &record) {
			return nil, fmt.Errorf("%s doesn't speak TLS: give the hub's address for MQTT over TLS, usually with port 8883", o.Hub)
		}
		return nil, o.unreachable(err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates, nil
}

// unreachable says what is probably wrong when there is no connection to the hub.
func (o *JoinOptions) unreachable(err error) error {
	remedy := "check the network between this node and the hub, and whether a firewall closes the port"
	switch {
	case errors.As(err, new(*net.DNSError)):
		remedy = "check the hub's name, and how this node resolves names; the hub's IP address will do if it is in hub.address in the hub's hub.yaml"
	case errors.Is(err, syscall.ECONNREFUSED):
		remedy = "the host is there, but nothing listens at this port: is cloudhub running, with listen: public in its hub.yaml, and is this the port of mqtt.tls.listen (8883)?"
	}
	return fmt.Errorf("the hub can't be reached: %w: %s", err, remedy)
}

// verify checks the hub's certificate against its authority, and says what is wrong in plain words.
func (o *JoinOptions) verify(chain []*x509.Certificate, root *x509.Certificate) error {
	host, _, err := net.SplitHostPort(o.Hub)
	if err != nil {
		return err
	}
	leaf, now := chain[0], o.Now()
	err = resource.VerifyChain(chain, root, host, now)
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && root.NotBefore.After(leaf.NotBefore):
		return fmt.Errorf("the hub's authority is not valid yet: it is from %s on, and the hub's own certificate from %s on. The clock of the hub's host was set back, or was ahead "+
			"when the authority was made. Set that clock, or replace the authority (edgebus authority rotate, and a new token); the clock of this node, which shows %s, may be right",
			resource.FormatTime(root.NotBefore), resource.FormatTime(leaf.NotBefore), resource.FormatTime(now))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the clock of this node says %s, but the hub's certificate is valid from %s to %s: set the clock (timedatectl), and join again",
			resource.FormatTime(now), resource.FormatTime(leaf.NotBefore), resource.FormatTime(leaf.NotAfter))
	case errors.As(err, &name):
		names := leaf.DNSNames
		for _, ip := range leaf.IPAddresses {
			names = append(names, ip.String())
		}
		return fmt.Errorf("the hub's certificate is for %s, and not for %s: join by one of these names, or add it to hub.address in the hub's hub.yaml", strings.Join(names, ", "), host)
	}
	return fmt.Errorf("the hub's certificate can't be trusted: %w", err)
}

// ask sends the request and waits for the answer.
func (o *JoinOptions) ask(ctx context.Context, key *ecdsa.PrivateKey, root *x509.Certificate) (a resource.JoinAnswer, err error) {
	csr, err := certificateRequest(o.Node, key)
	if err != nil {
		return a, err
	}
	print, err := keyFingerprint(key)
	if err != nil {
		return a, err
	}
	payload, err := json.Marshal(resource.JoinRequest{CSR: csr, Token: o.Token, Labels: o.Labels, LabelFrom: o.LabelFrom, SystemInfo: o.SystemInfo})
	if err != nil {
		return a, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	id := strings.ToLower(cryptorand.Text())
	at := topics.Address{Node: o.Node, Kind: topics.KindEnroll, Device: id}
	back := topics.Address{Node: o.Node, Kind: topics.KindEnrolled, Device: id}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	answers := make(chan resource.JoinAnswer, 1)
	told := false
	trying := o.sayOnce(ctx)
	var c *client.Client
	c, err = client.New(client.Options{
		Servers: []string{"mqtts://" + o.Hub}, ClientID: enrollPrefix + id, User: enrollPrefix + o.Node, Password: o.Token, CleanStart: true,
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Time: o.Now}, Log: zerolog.Nop(), Backoff: client.Backoff{Min: 500 * time.Millisecond, Max: 15 * time.Second},
		Subscriptions: []client.Subscription{{Filter: back.String(), QoS: 1}},
		OnConnect: func(context.Context, bool) error {
			c.PublishAsync(client.Message{Topic: at.String(), Payload: payload, QoS: 1}, func(err error) { o.refused(err, stop, trying) })
			return nil
		},
		OnDisconnect:   func(err error) { trying("the connection to the hub ended", err) },
		OnConnectError: func(err error) { o.refused(err, stop, trying) },
		OnMessage: func(m client.Message) {
			var got resource.JoinAnswer
			if err := json.Unmarshal(m.Payload, &got); err != nil {
				stop(fmt.Errorf("the hub's answer can't be read: %w", err))
				return
			}
			if got.State == resource.JoinWaiting {
				if !told {
					told = true
					o.Say("the hub has the request %s, and somebody has to approve it: edgebus approve %s\nthe fingerprint of this node's key is %s", got.Request, got.Request, print)
				}
				return
			}
			select {
			case answers <- got:
			default:
			}
		},
	})
	if err != nil {
		return a, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Run(ctx) // attempts have no end
	}()
	defer func() {
		stop(nil)
		<-ended
	}()
	select {
	case a = <-answers:
	case <-ctx.Done():
		return a, context.Cause(ctx)
	}
	if a.State == resource.JoinDenied {
		return a, refusalError{a.Reason}
	}
	return a, nil
}

// sayOnce logs why a request is tried again, and tells the person the first time.
func (o *JoinOptions) sayOnce(ctx context.Context) func(what string, err error) {
	var once sync.Once
	return func(what string, err error) {
		if ctx.Err() != nil { // the answer has arrived, or the caller has given up
			return
		}
		o.Log.Info().Err(err).Msg(what + ": trying again")
		once.Do(func() { o.Say("%s: %v\ntrying again, until ctrl-C", what, err) })
	}
}

// refused ends the attempt when the refusal is permanent. After other errors it is tried again.
func (o *JoinOptions) refused(err error, stop context.CancelCauseFunc, trying func(string, error)) {
	var no *client.Refused
	if !errors.As(err, &no) {
		if err != nil {
			trying("the hub can't be asked", err)
		}
		return
	}
	switch no.Code {
	case codeBadCredentials, codeNotAuthorized, codeBadPayload, codeBadTopic, codeBadClientID, codeQuota, codeConnectRate:
		stop(refusalError{strings.TrimPrefix(cmp.Or(no.Reason, err.Error()), "token: ")})
	default:
		trying("the hub can't enrol this node now", err)
	}
}

// Reason codes of MQTT 5 after which asking again is of no use.
const (
	codeBadClientID    = 0x85
	codeBadCredentials = 0x86
	codeNotAuthorized  = 0x87
	codeBadTopic       = 0x90
	codeQuota          = 0x97
	codeBadPayload     = 0x99
	codeConnectRate    = 0x9F
)
