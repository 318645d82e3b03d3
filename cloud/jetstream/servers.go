// SPDX-License-Identifier: Apache-2.0

package jetstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// MinVersion is the oldest version of the servers that the log may be on.
const MinVersion = "2.15"

// Report is what the servers are like.
type Report struct {
	Wrong []string // why nothing may be kept on them, with what to do
	Weak  []string // likewise, but for who tries it out on one machine
	// Notes are for who looks after the servers, and no reason not to serve: one that can't be asked, or whose disk has less room than it had.
	Notes []string
	// Clocks are by how much the servers' are ahead of this host's, by name.
	Clocks map[string]time.Duration
	// Expires is when the first of their certificates ends; zero: none was shown.
	Expires time.Time
}

// OpenServers says which servers let strangers write the log, with what to do. The servers see somebody who tries.
func OpenServers(ctx context.Context, o Options) []string {
	o.setDefaults()
	open := make([]string, len(o.Servers))
	var work sync.WaitGroup
	for i, s := range o.Servers {
		work.Go(func() { open[i] = o.strangerMay(ctx, s) })
	}
	work.Wait()
	return slices.DeleteFunc(open, func(s string) bool { return s == "" })
}

// InspectServers asks each server, at its monitoring address, whether it can be relied on for the log. One that doesn't answer is no error: it may be the one
// that is lost.
func InspectServers(ctx context.Context, o Options, client *http.Client, monitors []string) (r Report) {
	o.setDefaults()
	said := make([]*serverState, len(monitors))
	var work sync.WaitGroup
	for i, a := range monitors {
		work.Go(func() { said[i] = askServer(ctx, client, strings.TrimSuffix(a, "/")) })
	}
	work.Wait()
	said = slices.DeleteFunc(said, func(v *serverState) bool { return v == nil })
	if len(said) == 0 && len(monitors) > 0 && !errors.Is(ctx.Err(), context.Canceled) {
		r.Notes = append(r.Notes, fmt.Sprintf("no server answers at %s, and whether they sync what they acknowledge isn't known: look at store.nats.monitor", strings.Join(monitors, ", ")))
	}
	r.Clocks = make(map[string]time.Duration)
	for _, v := range said {
		v.judge(&r)
	}
	if n := len(monitors); n > 0 && n < o.Replicas {
		r.Wrong = append(r.Wrong, fmt.Sprintf("store.nats.monitor has %d addresses, and %d servers have the log: name those of all", n, o.Replicas))
	}
	r.compare(said)
	return r
}

// serverState is what a server says of itself.
type serverState struct {
	ID        string    `json:"server_id"`
	Name      string    `json:"server_name"`
	Version   string    `json:"version"`
	Now       time.Time `json:"now"`
	Payload   int64     `json:"max_payload"`
	JetStream struct {
		Config *jetStreamSettings `json:"config"`
		Stats  struct {
			Storage uint64 `json:"storage"`
		} `json:"stats"`
	} `json:"jetstream"`

	address string
	remote  netip.Addr
	ahead   time.Duration
	timed   bool      // ahead is known
	expires time.Time // of its certificate
	broken  error
}

type jetStreamSettings struct {
	SyncAlways bool   `json:"sync_always"`
	MaxStorage uint64 `json:"max_storage"`
	Dir        string `json:"store_dir"`
}

// askServer is nil for a server that doesn't answer.
func askServer(ctx context.Context, client *http.Client, address string) *serverState {
	v := &serverState{address: address}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		if at, err := netip.ParseAddrPort(c.Conn.RemoteAddr().String()); err == nil {
			v.remote = at.Addr().Unmap()
		}
	}})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/varz", nil)
	if err != nil {
		v.broken = err
		return v
	}
	began := time.Now()
	response, err := client.Do(request)
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		v.broken = err
		return v
	}
	if err != nil {
		return nil
	}
	took := time.Since(began)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		v.broken = fmt.Errorf("it answers %s: %q", response.Status, strings.TrimSpace(string(text)))
		return v
	}
	if v.broken = json.NewDecoder(io.LimitReader(response.Body, 4<<20)).Decode(v); v.broken != nil {
		return v
	}
	if v.JetStream.Config == nil {
		v.broken = v.askSettings(ctx, client)
	}
	v.ahead, v.timed = v.Now.Sub(began.Add(took/2)), !v.Now.IsZero() && took < time.Second
	if s := response.TLS; s != nil && len(s.PeerCertificates) > 0 {
		v.expires = s.PeerCertificates[0].NotAfter
	}
	return v
}

// askSettings asks for JetStream's settings as they are now: at /varz a server goes on without them if it was first asked before it had read them.
func (v *serverState) askSettings(ctx context.Context, client *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, v.address+"/jsz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s at /jsz", response.Status)
	}
	var said struct {
		Disabled bool               `json:"disabled"`
		Config   *jetStreamSettings `json:"config"`
	}
	err = json.NewDecoder(io.LimitReader(response.Body, 4<<20)).Decode(&said)
	if err == nil && !said.Disabled {
		v.JetStream.Config = said.Config
	}
	return err
}

func (v *serverState) judge(r *Report) {
	if v.broken != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("the server at %s can't be asked how it is: %v", v.address, v.broken))
		return
	}
	say := func(list *[]string, format string, args ...any) {
		*list = append(*list, fmt.Sprintf("the server %s (%s) ", v.Name, v.address)+fmt.Sprintf(format, args...))
	}
	if v.timed {
		r.Clocks[cmp.Or(v.Name, v.address)] = v.ahead
	}
	if !v.expires.IsZero() && (r.Expires.IsZero() || v.expires.Before(r.Expires)) {
		r.Expires = v.expires
	}
	if isOlder(v.Version, MinVersion) {
		say(&r.Wrong, "is NATS %s: install %s or later", v.Version, MinVersion)
	}
	if v.Payload < MinPayload {
		say(&r.Wrong, "takes messages of %d bytes at most: set max_payload: 1MB in its settings, and start it again", v.Payload)
	}
	if v.JetStream.Config == nil {
		say(&r.Wrong, "has no JetStream: its settings need jetstream { store_dir: …, sync_interval: always }")
		return
	}
	c := v.JetStream.Config
	if !c.SyncAlways {
		say(&r.Wrong, "acknowledges what isn't on its disk: set sync_interval: always in its jetstream settings, and start it again")
	}
	if free, size, known := diskBytes(c.Dir); known && isThisHost(v.remote) {
		room, list := free+v.JetStream.Stats.Storage, &r.Notes
		if c.MaxStorage > size { // else it may have had room when it was started, and what took that is no reason to be without a hub
			list = &r.Weak
		}
		if c.MaxStorage > room {
			say(list, "may store %d MB, and its disk has room for less: leave max_file_store out of its jetstream settings, and it takes three quarters of what is free; or set it below that, and start it again", c.MaxStorage>>20)
		}
	}
}

// compare finds servers that are one, or on one machine.
func (r *Report) compare(said []*serverState) {
	ids, hosts := make(map[string]*serverState), make(map[netip.Addr]*serverState)
	for _, v := range said {
		if v.ID == "" {
			continue
		}
		if other := ids[v.ID]; other != nil {
			r.Wrong = append(r.Wrong, fmt.Sprintf("store.nats.monitor leads to the server %s twice, at %s and at %s: name the address of each server once", v.Name, other.address, v.address))
			continue
		}
		ids[v.ID] = v
		host := v.remote
		if host.IsLoopback() {
			host = netip.IPv6Loopback()
		}
		if other := hosts[host]; other != nil && host.IsValid() {
			r.Weak = append(r.Weak, fmt.Sprintf("the servers %s and %s are on one machine (%s), which takes both with it: give each server a machine of its own", other.Name, v.Name, v.remote))
		}
		hosts[host] = v
	}
}

// isOlder compares the first two numbers of versions. One that is none of a release is not older.
func isOlder(version, than string) bool {
	numbers := func(s string) (n [2]int, ok bool) {
		parts := strings.SplitN(strings.TrimPrefix(s, "v"), ".", 3)
		for i := range min(len(parts), 2) {
			var err error
			if n[i], err = strconv.Atoi(parts[i]); err != nil {
				return n, false
			}
		}
		return n, len(parts) > 1
	}
	a, known := numbers(version)
	b, _ := numbers(than)
	return known && slices.Compare(a[:], b[:]) < 0
}

// isThisHost reports whether an address is one of this host's.
func isThisHost(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(n net.Addr) bool {
		p, err := netip.ParsePrefix(n.String())
		return err == nil && p.Addr() == a
	})
}

// strangerMay says what somebody without a certificate or credentials may do at a server; empty: nothing to the log.
func (o *Options) strangerMay(ctx context.Context, server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	u.User = nil
	limit := o.Timeout
	if until, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(until))
	}
	settings := []nats.Option{nats.Name(o.Name + ", which asks as a stranger"), nats.NoReconnect(), nats.Timeout(limit), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), nats.DontRandomize(), nats.IgnoreDiscoveredServers()}
	if o.TLS != nil {
		stranger := o.TLS.Clone()
		stranger.GetClientCertificate, stranger.Certificates = nil, nil
		settings = append(settings, useTLS(stranger, o.NeedTLS))
	}
	conn, err := nats.Connect(u.String(), settings...)
	if err != nil {
		return ""
	}
	defer conn.Close()
	inbox, err := conn.SubscribeSync(conn.NewInbox())
	if err != nil {
		return ""
	}
	m := nats.NewMsg(o.subject())
	m.Reply = inbox.Subject
	m.Header.Set("Nats-Expected-Last-Sequence", strconv.FormatInt(math.MaxInt64, 10)) // so it isn't stored: the log isn't as long
	_ = conn.PublishMsg(m)
	_ = conn.PublishRequest("$JS.API.STREAM.INFO."+o.Stream, inbox.Subject, nil)
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	if conn.FlushWithContext(ctx) != nil {
		return ""
	}
	if conn.LastError() != nil { // a refusal came before the flush ended: one of the two may be answered
		ctx, stop = context.WithTimeout(ctx, refusedTime)
		defer stop()
	}
	for range 2 {
		answer, err := inbox.NextMsgWithContext(ctx)
		if err != nil {
			return ""
		}
		var said struct {
			Error *apiError `json:"error"`
		}
		if len(answer.Data) > 0 && json.Unmarshal(answer.Data, &said) == nil && (said.Error == nil || said.Error.ErrCode == codeWrongLast) { // else it is in the account of strangers
			return fmt.Sprintf("anybody who reaches the server at %s may write or delete the log: give the hubs an account of their own, as `cloudhub cluster certificates` writes it into the servers' settings", u.Host)
		}
	}
	return ""
}

// refusedTime is how long the other question is waited for when one was refused.
const refusedTime = 100 * time.Millisecond

// useTLS has connections use settings if the server asks for TLS, which it has to if needed is set.
func useTLS(c *tls.Config, needed bool) nats.Option {
	return func(o *nats.Options) error {
		o.TLSConfig, o.Secure = c, needed
		return nil
	}
}
