package broker

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/topics/resource"
)

// loginThrottle bounds the cost of checking passwords, whose hashes are made to be expensive. An attempt is counted before
// its password is checked, few passwords are checked at a time, few may wait for that, and equal attempts at the same time
// are checked once.
type loginThrottle struct {
	most  int // attempts in attemptWindow: wrong passwords, and those that are being checked
	now   func() time.Time
	turns chan struct{}
	queue int // checks that may wait for a turn

	mu       sync.Mutex
	key      [sha256.Size]byte // of the digests; each process has its own
	counted  map[loginDigest]loginAttempts
	checking map[loginDigest]*passwordCheck
	right    map[loginDigest]time.Time // passwords that were right, and until when they are remembered
	proven   map[loginDigest]time.Time // the same with the addresses that they came from, for longer
}

// loginDigest is a keyed hash of a user's name and a password, or of an address and a name. The texts themselves are not kept.
type loginDigest [sha256.Size]byte

type loginAttempts struct {
	n     int
	since time.Time
}

// passwordCheck is a password that is being checked.
type passwordCheck struct {
	done chan struct{}
	ok   bool
}

// loginResult is the outcome of an attempt.
type loginResult int

const (
	loginWrong loginResult = iota
	loginRight
	loginTooMany // attempts: the password was not checked
	loginBusy    // too many checks wait: the password was not checked
)

const (
	attemptWindow      = time.Minute
	maxRemembered      = 10_000          // names and addresses that are counted, and passwords that are remembered
	rememberTime       = 5 * time.Minute // of a password that is not checked again
	provenTime         = 24 * time.Hour  // of a password and its address, whose attempts are not counted
	attemptsPerAddress = 10              // times the attempts for one name that one address has for all names
	guessesOfProven    = 50              // times the attempts for one name, after which its proven password waits as well: else it could be guessed without end
	maxQueuedRounds    = 5_000_000       // rounds of hashing that may wait for one turn: a few seconds' worth
	minQueued          = 4
)

// newLoginThrottle makes a throttle for most attempts a minute, and for hashes of at most that many rounds.
func newLoginThrottle(most, rounds int, now func() time.Time) *loginThrottle {
	turns := max(1, runtime.GOMAXPROCS(0)/2)
	g := &loginThrottle{
		most: most, now: now, turns: make(chan struct{}, turns), queue: turns * max(minQueued, maxQueuedRounds/max(1, rounds)),
		counted: make(map[loginDigest]loginAttempts), checking: make(map[loginDigest]*passwordCheck), right: make(map[loginDigest]time.Time),
		proven: make(map[loginDigest]time.Time),
	}
	_, _ = rand.Read(g.key[:]) // crypto/rand never fails
	return g
}

// check checks a password by calling matches, unless there were too many attempts. A password that was right a short time
// ago is not checked again. Attempts with one that was right lately from the same address don't count and always pass, so that
// whoever else is behind that address can't lock its user out: only passwords that are new there wait.
func (g *loginThrottle) check(address, user string, password []byte, matches func() bool) loginResult {
	d := g.digest(user, password)
	who, from := g.digest(address, []byte(user)), g.digest(address, nil) // digests, since a name may be 64 KiB long
	at := g.digest(address, d[:])
	g.mu.Lock()
	proven := g.now().Before(g.proven[at]) && g.count(who) < g.most*guessesOfProven
	if !proven && g.tooMany(who, from) {
		g.add(who, 1)
		g.mu.Unlock()
		return loginTooMany
	}
	if g.now().Before(g.right[d]) {
		g.remember(g.proven, at, provenTime)
		g.mu.Unlock()
		return loginRight
	}
	if l := g.checking[d]; l != nil {
		g.mu.Unlock()
		<-l.done
		return l.verdict()
	}
	if len(g.checking) >= g.queue+cap(g.turns) {
		g.mu.Unlock()
		return loginBusy
	}
	l := &passwordCheck{done: make(chan struct{})}
	g.checking[d] = l
	if !proven {
		g.add(who, 1)
		g.add(from, 1)
	}
	g.mu.Unlock()

	g.turns <- struct{}{}
	runtime.Gosched() // on a single processor those who wait for the network run before the next check
	l.ok = matches()
	<-g.turns

	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.checking, d)
	switch {
	case !l.ok:
		delete(g.proven, at) // it was changed
	default:
		if !proven {
			g.add(who, -1)
			g.add(from, -1)
		}
		g.remember(g.right, d, rememberTime)
		g.remember(g.proven, at, provenTime)
	}
	close(l.done)
	return l.verdict()
}

// countGuess counts a guess at what costs nothing to check, if it was wrong, and says whether there were too many.
func (g *loginThrottle) countGuess(address, user string, wrong bool) (tooMany bool) {
	who, from := g.digest(address, []byte(user)), g.digest(address, nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.tooMany(who, from) {
		return true
	}
	if wrong {
		g.add(who, 1)
		g.add(from, 1)
	}
	return false
}

func (l *passwordCheck) verdict() loginResult {
	if l.ok {
		return loginRight
	}
	return loginWrong
}

func (g *loginThrottle) digest(name string, of []byte) (d loginDigest) {
	mac := hmac.New(sha256.New, g.key[:])
	mac.Write([]byte(name))
	mac.Write([]byte{0}) // which no name has
	mac.Write(of)
	mac.Sum(d[:0])
	return d
}

// count returns the number of attempts within the window, and add changes it. The caller holds the lock.
func (g *loginThrottle) count(who loginDigest) int {
	c := g.counted[who]
	if g.now().Sub(c.since) > attemptWindow {
		return 0
	}
	return c.n
}

func (g *loginThrottle) add(who loginDigest, n int) {
	c := g.counted[who]
	if now := g.now(); now.Sub(c.since) > attemptWindow {
		c = loginAttempts{since: now}
	}
	if c.n = max(0, c.n+n); c.n == 0 {
		delete(g.counted, who)
		return
	}
	if _, there := g.counted[who]; !there && len(g.counted) >= maxRemembered {
		g.evict()
	}
	g.counted[who] = c
}

// evict makes room for another name or address: those whose window has ended go first, then those with the fewest attempts.
func (g *loginThrottle) evict() {
	for least := 1; len(g.counted) >= maxRemembered; least++ {
		for who, c := range g.counted {
			if c.n <= least || g.now().Sub(c.since) > attemptWindow {
				delete(g.counted, who)
			}
		}
	}
}

// loginTooMany reports whether there were too many attempts for a name at an address, or at that address. The caller holds the lock.
func (g *loginThrottle) tooMany(who, from loginDigest) bool {
	return g.count(who) >= g.most || g.count(from) >= g.most*attemptsPerAddress
}

// remember notes what was right in one of the maps. The caller holds the lock.
func (g *loginThrottle) remember(in map[loginDigest]time.Time, d loginDigest, lasts time.Duration) {
	if _, known := in[d]; !known && len(in) >= maxRemembered {
		maps.DeleteFunc(in, func(_ loginDigest, until time.Time) bool { return !g.now().Before(until) })
		for old := range in { // any: who signs in next is remembered again
			if len(in) < maxRemembered {
				break
			}
			delete(in, old)
		}
	}
	in[d] = g.now().Add(lasts)
}

// identify finds the identity that credentials prove, or the reason code of the refusal, and its reason if there is more to say
// than the code does. Attempts are counted by name and address together, so that a client at another address can't lock a user out.
func (b *Broker) identify(remote net.Addr, c credentials) (id Identity, code byte, why string) {
	ok := false
	if node, is := b.auth.enrollee(c); is {
		return b.identifyEnrollee(remote, node, c)
	}
	if b.auth.bearer != nil && c.hasPass && b.auth.bearer.IsToken(string(c.password)) {
		return b.identifyBearer(remote, c)
	}
	if c = b.auth.withoutUnneeded(c); !c.hasPass {
		if id, why, ok = b.auth.identify(c); !ok {
			return id, codeBadCredentials, why
		}
		return id, codeSuccess, ""
	}
	u, known := b.auth.findUser(c.user)
	name := c.user
	if known {
		name = u.Name
	}
	switch b.logins.check(peerNetwork(remote), name, c.password, func() bool { return b.auth.matches(c) }) {
	case loginTooMany:
		return id, codeConnectRate, ""
	case loginBusy:
		return id, codeServerBusy, ""
	case loginWrong:
		return id, codeBadCredentials, ""
	}
	id = b.auth.identity(u)
	if why = b.auth.denied(id, c); why != "" {
		return Identity{}, codeBadCredentials, why
	}
	return id, codeSuccess, ""
}

// identifyEnrollee lets a node in that asks for its first certificate. A wrong token counts as a wrong password; that
// the hub takes no request at all, or not in that name, does not.
func (b *Broker) identifyEnrollee(remote net.Addr, node string, c credentials) (id Identity, code byte, why string) {
	err := b.auth.enroll(node, string(c.password))
	if len(c.password) > 0 && b.logins.countGuess(peerNetwork(remote), c.user, errors.Is(err, resource.Unauthorized)) {
		return id, codeConnectRate, "too many wrong tokens: try again in a minute"
	}
	if err != nil {
		return id, codeBadCredentials, reasonOf(err)
	}
	id = enrolleeIdentity(node)
	if why = b.auth.denied(Identity{User: nodeUser(node)}, credentials{}); why != "" {
		return Identity{}, codeBadCredentials, why
	}
	return id, codeSuccess, ""
}

// identifyBearer says whose token it is. Tokens are too long to be guessed: wrong ones are counted so that a flood of them
// costs little.
func (b *Broker) identifyBearer(remote net.Addr, c credentials) (id Identity, code byte, why string) {
	from := peerNetwork(remote)
	if !b.logins.mayTryToken(from, c.password) {
		return id, codeConnectRate, ""
	}
	ctx, stop := context.WithTimeout(context.Background(), bearerTimeout)
	defer stop()
	u, err := b.auth.bearer.Verify(ctx, string(c.password))
	switch {
	case errors.Is(err, resource.Unauthorized):
		b.logins.tokenFailed(from)
		return id, codeBadCredentials, err.Error()
	case errors.Is(err, resource.Forbidden):
		return id, codeNotAuthorized, err.Error()
	case err != nil:
		b.log.Warn().Err(err).Msg("a bearer token can't be verified now")
		return id, codeServerBusy, err.Error()
	case c.user != "" && c.user != u.Name:
		return id, codeBadCredentials, fmt.Sprintf("the token is %s's, and the user name is %s: give that or none", u.Name, validText(c.user))
	}
	if _, listed := b.auth.users[u.Name]; listed {
		return id, codeBadCredentials, fmt.Sprintf("%s is a user of auth.users, who signs in with a password or certificate: the holder of a token needs a name of its own", validText(u.Name))
	}
	b.logins.tokenSucceeded(from, c.password)
	id = b.auth.identity(authUser{User: u.User})
	id.Expires, id.Bearer, id.Token, id.Revoked = u.Expires, true, u.ID, u.Revoked
	if why = b.auth.denied(id, credentials{local: c.local}); why != "" {
		return Identity{}, codeBadCredentials, why
	}
	return id, codeSuccess, ""
}

const bearerTimeout = 15 * time.Second // for a provider that has to be asked

// mayTryToken reports whether an address has shown few enough wrong tokens, or has shown this one when it was right. failed counts a
// wrong one, and succeeded notes a right one.
func (g *loginThrottle) mayTryToken(address string, token []byte) bool {
	at := g.digest(address, token)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now().Before(g.proven[at]) || g.count(g.digest(address, nil)) < g.most*attemptsPerAddress
}

func (g *loginThrottle) tokenSucceeded(address string, token []byte) {
	at := g.digest(address, token)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.remember(g.proven, at, provenTime)
}

func (g *loginThrottle) tokenFailed(address string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(g.digest(address, nil), 1)
}

// peerNetwork is the address that a peer's attempts are counted for.
func peerNetwork(remote net.Addr) string { return daemon.Network(remote.String()) }

// quotas bound how much of what all clients share one user, node or address may hold.
type quotas struct {
	users, hosts *quota.Quota // connections, and HTTP requests under way
	requests     *quota.Quota // of these, the HTTP requests
	persistent   *quota.Quota // sessions that outlive their connections
	queued       *quota.Quota // bytes of messages that wait or are not acknowledged
	state        *quota.Quota // bytes of filters, wills, topic aliases and QoS 2 states
	retained     *quota.Quota // bytes of retained messages
	unfinished   *quota.Quota // bytes of memory for packets that have not arrived whole
	unsigned     *quota.Quota // the same, of clients that haven't signed in
}

// maxUnsigned is how many bytes of unfinished packets clients hold at most that haven't signed in. A CONNECT that comes at once,
// or is small, isn't counted.
const maxUnsigned = 16 << 20

// unfinishedPackets is how many of the largest packets limits.unfinished has room for at least, since one user has no more than
// is free.
const unfinishedPackets = 4

func newQuotas(l Limits) quotas {
	limit := func(n int, setting string) quota.Limit { return quota.Limit{Most: int64(n), Setting: setting} }
	perUser := limit(l.PerUser, "limits.perUser")
	unfinished, unsigned := limit(0, ""), limit(maxUnsigned, "limits.unfinished")
	if l.Unfinished > 0 {
		unfinished = limit(int(max(l.Unfinished, unfinishedPackets*l.Packet)), "limits.unfinished")
		unsigned.Most = min(unsigned.Most, unfinished.Most)
	}
	return quotas{
		users:      quota.New("connections", "user", perUser, quota.Limit{}),
		hosts:      quota.New("connections", "address", limit(l.PerAddress, "limits.perAddress"), quota.Limit{}),
		requests:   halfQuota("HTTP requests under way", l.Requests, "limits.requests"),
		persistent: quota.New("sessions that outlive their connections", "user", perUser, limit(l.Sessions, "limits.sessions")),
		queued:     quota.NewShared("bytes of messages", "user", limit(int(l.Session.All), "limits.session.all")),
		state:      quota.NewShared("bytes of filters, wills, topic aliases and QoS 2 states", "user", limit(int(l.Session.State), "limits.session.state")),
		retained:   quota.NewShared("bytes of retained messages", "user or node", limit(int(l.Retained.Bytes), "limits.retained.bytes")),

		unfinished: quota.NewShared("bytes of unfinished packets", "user", unfinished),
		unsigned:   quota.NewShared("bytes of unfinished CONNECTs", "address", unsigned),
	}
}

// NewWatchQuota makes the quota of open watches of an HTTP API. One user has half of them at most.
func NewWatchQuota(most int) *quota.Quota { return halfQuota("watches", most, "limits.watches") }

func halfQuota(what string, most int, setting string) *quota.Quota {
	return quota.New(what, "user", quota.Limit{Most: int64(most+1) / 2, Setting: "half of " + setting}, quota.Limit{Most: int64(most), Setting: setting})
}

// quotaHolder is whom a connection counts for: its user, if it has one, and the host it comes from. The loopback
// address doesn't count, since a proxy on this host may connect for many clients.
type quotaHolder struct{ user, host string }

func quotaHolderOf(id *Identity, remote net.Addr) quotaHolder {
	s := quotaHolder{user: id.User}
	if tcp, ok := remote.(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		s.host = peerNetwork(tcp)
	}
	return s
}

// takeConnection counts a connection or request for its owner, or returns the limit that it exceeds. If the connection
// takes over another one of the owner over, that is not counted against it.
func (q *quotas) takeConnection(at, over quotaHolder) error {
	if err := takeQuota(q.users, at.user, over.user); err != nil {
		return err
	}
	err := takeQuota(q.hosts, at.host, over.host)
	if err != nil {
		q.users.Add(at.user, -1)
	}
	return err
}

func takeQuota(q *quota.Quota, key, over string) error {
	if key == over {
		q.Add(key, 1)
		return nil
	}
	return q.Take(key, 1)
}

// releaseConnection ends what takeConnection counted.
func (q *quotas) releaseConnection(at quotaHolder) {
	q.users.Add(at.user, -1)
	q.hosts.Add(at.host, -1)
}

// Reading is bounded per connection: after a quantum of 64 packets, 64 KiB or 200 µs without a pause of its
// own, what a client has sent is stored and sent on, and the client is paused for twice the time that the
// quantum took, if another client has published within the last second. What isn't read meanwhile waits
// at the sender: nothing is lost. Without this one publisher at full speed multiplies the others' latency (bench: Neighbours).
// A client that is alone is read as fast as it sends.
const (
	quantumPackets = 64
	quantumBytes   = 64 << 10
	quantumTime    = 200 * time.Microsecond
	clockEvery     = 8 // packets, or reads without one, after which the clock is looked at

	pauseFactor  = 2                // times what a quantum took
	pauseLeast   = time.Millisecond // what a timer can do
	pauseMost    = 100 * time.Millisecond
	maxStoreWait = 50 * time.Millisecond // that the end of a quantum waits for what was published in it

	ownPause  = 50 * time.Microsecond  // a read that waits so long ends the quantum: the client paused by itself
	idleAfter = 20 * time.Millisecond  // a read that waits so long ends a flood
	activeFor = time.Second            // how long a client that published counts as waiting
	noteEvery = 100 * time.Millisecond // how often a client that publishes is noted
)

// quantum counts what a connection has read without a pause. Only the reading goroutine uses it.
type quantum struct {
	began   time.Time
	packets int
	reads   int // of the socket since the last packet
	bytes   int
	flood   bool      // the client has used up its last quantum
	marked  time.Time // when the client was last noted as a neighbour
}

func (q *quantum) begin(now time.Time) { q.began, q.packets, q.reads, q.bytes = now, 0, 0, 0 }

// activePublisher is a client that has published lately without using up its quantum, by its client id, so that a client that
// reconnects is not its own neighbour. One client is remembered at a time, until it is silent or uses up a quantum.
type activePublisher struct{ last atomic.Pointer[lastPublish] }

type lastPublish struct {
	client string
	at     time.Time
}

// note remembers a client that publishes.
func (n *activePublisher) note(client string, q *quantum) {
	if q.flood || q.began.Sub(q.marked) < noteEvery {
		return
	}
	q.marked = q.began
	if last := n.last.Load(); last == nil || last.client == client || q.began.Sub(last.at) > activeFor/2 {
		n.last.Store(&lastPublish{client, q.began})
	}
}

// forget removes a client that has used up its quantum, so that another one can be remembered.
func (n *activePublisher) forget(client string) {
	if last := n.last.Load(); last != nil && last.client == client {
		n.last.CompareAndSwap(last, nil)
	}
}

// othersActive reports whether another client has published lately.
func (n *activePublisher) othersActive(client string, now time.Time) bool {
	last := n.last.Load()
	return last != nil && last.client != client && now.Sub(last.at) < activeFor
}

// meteredSocket is the socket below TLS or WebSocket. It counts every read in its connection's quantum, since records and frames
// cost time although they may never complete a packet.
type meteredSocket struct {
	*net.TCPConn
	c *conn // nil: not known yet
}

func (m *meteredSocket) Read(p []byte) (int, error) {
	if m.c == nil {
		return m.TCPConn.Read(p)
	}
	began := time.Now()
	n, err := m.TCPConn.Read(p)
	for again := n == 0; again; {
		poll := func() (got bool, err error) {
			n, err = m.poll(p)
			return n > 0, err
		}
		if again, err = m.c.interrupted(err, 0, poll); again {
			n, err = m.TCPConn.Read(p)
			again = n == 0
		}
	}
	now := time.Now()
	m.c.unextendedBytes += n // of a record, before it is complete
	m.c.countRead(now, now.Sub(began), false)
	return n, err
}

// poll reads without waiting, whatever the deadline is.
func (m *meteredSocket) poll(p []byte) (n int, err error) {
	raw, err := m.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlled := raw.Control(func(fd uintptr) { n, _, err = tryRead(fd, p) })
	return n, errors.Join(controlled, err)
}

// meter makes the socket below a transport count in the connection's quantum. From then on only the connection's reading
// goroutine may read from it.
func (c *conn) meter(transport net.Conn) {
	if ws, ok := transport.(*wsConn); ok {
		ws.pings = func() { c.countPacket(0) } // they count as packets
	}
	transport = underlyingConn(transport)
	if secure, ok := transport.(*tls.Conn); ok {
		transport = secure.NetConn()
	}
	if m, ok := transport.(*meteredSocket); ok {
		m.c = c
	}
}

// countRead is called after each read of the socket, with how long it waited and whether it brought little. A client that
// sends little and has the answers to everything it sent waits for each answer: that counts as a pause, too.
func (c *conn) countRead(now time.Time, took time.Duration, little bool) {
	q := &c.quantum
	if took < ownPause && !(little && c.acks.empty()) {
		if q.reads++; q.reads >= clockEvery && now.Sub(q.began) > quantumTime {
			c.endQuantum(now)
		}
		return
	}
	q.begin(now)
	if took > idleAfter {
		q.flood = false
	}
}

// countAck is called for each acknowledgement of a client. Acknowledgements of messages that were sent to the client are
// not counted in the quantum: reading them late would slow down what the client receives.
func (c *conn) countAck(known bool) {
	if !known {
		c.countPacket(0)
		return
	}
	c.quantum.reads = 0
}

// countPacket counts a packet in the quantum, and ends the quantum when it is used up.
func (c *conn) countPacket(bytes int) {
	c.keepRate()
	q := &c.quantum
	q.reads = 0
	q.packets++
	q.bytes += bytes
	full := q.packets >= quantumPackets || q.bytes >= quantumBytes
	if !full && q.packets%clockEvery != 0 {
		return
	}
	now := time.Now()
	if !full && now.Sub(q.began) < quantumTime {
		return
	}
	c.endQuantum(now)
}

func (c *conn) endQuantum(now time.Time) {
	q := &c.quantum
	q.flood = true
	c.b.activePublisher.forget(c.ident.ClientID)
	if c.b.activePublisher.othersActive(c.ident.ClientID, now) {
		c.batch.Flush()
		c.lastRoute = nil // it may be outdated after the pause, and is large
		c.acks.waitAll(maxStoreWait)
		runtime.Gosched()
		c.pause(min(pauseFactor*time.Since(q.began), pauseMost), &c.loggedFlood,
			"a client that sends without a pause is read more slowly while others publish")
	}
	q.begin(time.Now())
}

// keepRate pauses a client that sends more than limits.packetRate, after a second's worth at once.
func (c *conn) keepRate() {
	if c.rate == nil {
		return
	}
	wait := c.rate.Reserve().Delay()
	if wait < pauseLeast {
		return
	}
	c.batch.Flush()
	c.pause(wait, &c.loggedRate, "a client that sends more packets a second than limits.packetRate is read at that rate")
	c.quantum.begin(time.Now())
}

// servedRetained is called by the goroutine that writes to the client, with the time that it spent on retained
// messages. Serving a large tree costs as much as a flood, so while others publish it is paused by the same rule.
func (c *conn) servedRetained(took time.Duration, more bool) {
	if !c.b.activePublisher.othersActive(c.ident.ClientID, time.Now()) {
		c.retainedPause = 0
		return
	}
	c.retainedPause = min(c.retainedPause+pauseFactor*took, pauseMost)
	if !more || c.retainedPause < pauseLeast {
		return
	}
	c.pause(c.retainedPause, &c.loggedRetained, "a client that is sent many retained messages gets them more slowly while others publish")
	c.retainedPause = 0
}

// pause waits, counts the pause, and logs its reason once for each connection.
func (c *conn) pause(d time.Duration, told *bool, reason string) {
	d = max(d, pauseLeast)
	c.b.metrics.pauses.Inc()
	c.b.metrics.pausedSeconds.Add(d.Seconds())
	if !*told {
		*told = true
		c.b.sampledLog.Info().Str("client", c.ident.ClientID).Str("user", c.ident.User).Str("remote", c.ident.Remote).Msg(reason)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.w.Done():
	}
}
