package broker

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"
)

// guard stands before the passwords: a hash is made to be expensive. It counts a guess before it is looked at,
// looks at few at a time, lets few wait, and looks at the same one once, however many bring it.
type guard struct {
	most  int // guesses in guardTime: wrong ones, and those that are being looked at
	now   func() time.Time
	turns chan struct{}
	queue int // that may wait for a turn

	mu      sync.Mutex
	key     [sha256.Size]byte // of the digests, made anew by each process
	counted map[digest]guesses
	looking map[digest]*look
	right   map[digest]time.Time // passwords that were right, and until when that is remembered
}

// digest stands for a user's name and a password, or an address and a name, of which nothing else is kept.
type digest [sha256.Size]byte

type guesses struct {
	n     int
	since time.Time
}

// look is a password that is being looked at.
type look struct {
	done chan struct{}
	ok   bool
}

// verdict is what the guard says of a password.
type verdict int

const (
	wrong verdict = iota
	right
	tooMany // were wrong
	busy    // too many wait
)

const (
	guardTime   = time.Minute
	guardSize   = 10_000 // that are counted, and remembered
	rightTime   = 5 * time.Minute
	guardNames  = 10        // times as many guesses as for one name are those of one address for all names
	queuedWork  = 5_000_000 // rounds of hashing that wait for one turn: some seconds' worth
	queuedLeast = 4
)

// newGuard makes one for hashes of at most so many rounds.
func newGuard(most, rounds int, now func() time.Time) *guard {
	turns := max(1, runtime.GOMAXPROCS(0)/2)
	g := &guard{
		most: most, now: now, turns: make(chan struct{}, turns), queue: turns * max(queuedLeast, queuedWork/max(1, rounds)),
		counted: make(map[digest]guesses), looking: make(map[digest]*look), right: make(map[digest]time.Time),
	}
	_, _ = rand.Read(g.key[:]) // crypto/rand never fails
	return g
}

// check has a password looked at, but for somebody who was wrong too often. What was right a short time ago is not
// looked at again.
func (g *guard) check(address, user string, password []byte, matches func() bool) verdict {
	d := g.digest(user, password)
	who, from := g.digest(address, []byte(user)), g.digest(address, nil) // a name may be 64 KiB long
	g.mu.Lock()
	if g.count(who) >= g.most || g.count(from) >= g.most*guardNames {
		g.mu.Unlock()
		return tooMany
	}
	if until, known := g.right[d]; known && g.now().Before(until) {
		g.mu.Unlock()
		return right
	}
	if l := g.looking[d]; l != nil {
		g.mu.Unlock()
		<-l.done
		return l.verdict()
	}
	if len(g.looking) >= g.queue+cap(g.turns) {
		g.mu.Unlock()
		return busy
	}
	l := &look{done: make(chan struct{})}
	g.looking[d] = l
	g.add(who, 1)
	g.add(from, 1)
	g.mu.Unlock()

	g.turns <- struct{}{}
	l.ok = matches()
	<-g.turns

	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.looking, d)
	if l.ok {
		g.add(who, -1)
		g.add(from, -1)
		g.remember(d)
	}
	close(l.done)
	return l.verdict()
}

func (l *look) verdict() verdict {
	if l.ok {
		return right
	}
	return wrong
}

func (g *guard) digest(name string, of []byte) (d digest) {
	mac := hmac.New(sha256.New, g.key[:])
	mac.Write([]byte(name))
	mac.Write([]byte{0}) // which no name has
	mac.Write(of)
	mac.Sum(d[:0])
	return d
}

// count is how many guesses count; add changes it. The guard is locked.
func (g *guard) count(who digest) int {
	c := g.counted[who]
	if g.now().Sub(c.since) > guardTime {
		return 0
	}
	return c.n
}

func (g *guard) add(who digest, n int) {
	c := g.counted[who]
	if now := g.now(); now.Sub(c.since) > guardTime {
		c = guesses{since: now}
	}
	if c.n = max(0, c.n+n); c.n == 0 {
		delete(g.counted, who)
		return
	}
	if _, there := g.counted[who]; !there && len(g.counted) >= guardSize {
		g.forget()
	}
	g.counted[who] = c
}

// forget makes room among what is counted: what counts no more goes first, and then the least.
func (g *guard) forget() {
	for least := 1; len(g.counted) >= guardSize; least++ {
		for who, c := range g.counted {
			if c.n <= least || g.now().Sub(c.since) > guardTime {
				delete(g.counted, who)
			}
		}
	}
}

func (g *guard) remember(d digest) {
	if len(g.right) >= guardSize {
		for old, until := range g.right {
			if !g.now().Before(until) {
				delete(g.right, old)
			}
		}
		if len(g.right) >= guardSize {
			clear(g.right)
		}
	}
	g.right[d] = g.now().Add(rightTime)
}

// identify says who it is, or the reason code of who isn't let in, and why if there is more to say. One who knows a
// user's name and is at another address can't keep that user out.
func (b *Broker) identify(remote net.Addr, c credentials) (id Identity, code byte, why string) {
	ok := false
	if c = b.auth.needed(c); !c.hasPass {
		if id, why, ok = b.auth.identify(c); !ok {
			return id, codeBadCredentials, why
		}
		return id, codeSuccess, ""
	}
	u, known := b.auth.account(c.user)
	name := c.user
	if known {
		name = u.Name
	}
	switch b.guard.check(network(remote), name, c.password, func() bool { return b.auth.matches(c) }) {
	case tooMany:
		return id, codeConnectRate, ""
	case busy:
		return id, codeServerBusy, ""
	case wrong:
		return id, codeBadCredentials, ""
	}
	id = b.auth.identity(u)
	if why = b.auth.denied(id, c.cert); why != "" {
		return Identity{}, codeBadCredentials, why
	}
	return id, codeSuccess, ""
}

// network is where a peer's guesses are counted: its address, of IPv6 the 64 bits that one host may have all of.
func network(remote net.Addr) string {
	at, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return remote.String()
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}
