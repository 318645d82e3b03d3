// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/daemon"
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

// tooMany reports whether there were too many attempts for a name at an address, or at that address. The caller holds the lock.
func (g *loginThrottle) tooMany(who, from loginDigest) bool {
	return g.count(who) >= g.most || g.count(from) >= g.most*attemptsPerAddress
}

// remember notes what was right in one of the maps. The caller holds the lock.
func (g *loginThrottle) remember(in map[loginDigest]time.Time, d loginDigest, lasts time.Duration) {
	if _, known := in[d]; !known && len(in) >= maxRemembered {
		maps.DeleteFunc(in, func(_ loginDigest, until time.Time) bool { return !g.now().Before(until) })
		for old := range in { // any: who signs in next is remembered again. A tenth goes, so that not each one looks at all
			if len(in) < maxRemembered/10*9 {
				break
			}
			delete(in, old)
		}
	}
	in[d] = g.now().Add(lasts)
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

// signIn finds the identity that credentials prove, or the reason code of the refusal, and its reason if there is more to say
// than the code does. Attempts are counted by name and address together, so that a client at another address can't lock a user out.
func (a *authenticator) signIn(remote net.Addr, c credentials) (id Identity, code byte, why string) {
	ok := false
	if node, is := a.enrollee(c); is {
		return a.signInEnrollee(remote, node, c)
	}
	if a.bearer != nil && c.hasPass && a.bearer.IsToken(string(c.password)) {
		return a.signInBearer(remote, c)
	}
	if c = a.withoutUnneeded(c); !c.hasPass {
		if id, why, ok = a.identifyWithoutPassword(c); !ok {
			return id, codeBadCredentials, why
		}
		return id, codeSuccess, ""
	}
	u, known := a.findUser(c.user)
	name := c.user
	if known {
		name = u.Name
	}
	switch a.logins.check(peerNetwork(remote), name, c.password, func() bool { return a.matches(c) }) {
	case loginTooMany:
		return id, codeConnectRate, ""
	case loginBusy:
		return id, codeServerBusy, ""
	case loginWrong:
		return id, codeBadCredentials, ""
	}
	id = a.identity(u)
	if why = a.denied(id, c); why != "" {
		return Identity{}, codeBadCredentials, why
	}
	return id, codeSuccess, ""
}

// signInEnrollee lets a node in that asks for its first certificate. A wrong token counts as a wrong password; that
// the hub takes no request at all, or not in that name, does not.
func (a *authenticator) signInEnrollee(remote net.Addr, node string, c credentials) (id Identity, code byte, why string) {
	err := a.enroll(node, string(c.password))
	if len(c.password) > 0 && a.logins.countGuess(peerNetwork(remote), c.user, errors.Is(err, resource.Unauthorized)) {
		return id, codeConnectRate, "too many wrong tokens: try again in a minute"
	}
	if err != nil {
		return id, codeBadCredentials, reasonOf(err)
	}
	id = enrolleeIdentity(node)
	if why = a.denied(Identity{User: nodeUser(node)}, credentials{}); why != "" {
		return Identity{}, codeBadCredentials, why
	}
	return id, codeSuccess, ""
}

// signInBearer says whose token it is. Tokens are too long to be guessed: wrong ones are counted so that a flood of them
// costs little.
func (a *authenticator) signInBearer(remote net.Addr, c credentials) (id Identity, code byte, why string) {
	from := peerNetwork(remote)
	if !a.logins.mayTryToken(from, c.password) {
		return id, codeConnectRate, ""
	}
	ctx, stop := context.WithTimeout(context.Background(), bearerTimeout)
	defer stop()
	u, err := a.bearer.Verify(ctx, string(c.password))
	switch {
	case errors.Is(err, resource.Unauthorized):
		a.logins.tokenFailed(from)
		return id, codeBadCredentials, err.Error()
	case errors.Is(err, resource.Forbidden):
		return id, codeNotAuthorized, err.Error()
	case err != nil:
		a.log.Warn().Err(err).Msg("a bearer token can't be verified now")
		return id, codeServerBusy, err.Error()
	case c.user != "" && c.user != u.Name:
		return id, codeBadCredentials, fmt.Sprintf("the token is %s's, and the user name is %s: give that or none", u.Name, validText(c.user))
	}
	if _, listed := a.users[u.Name]; listed {
		return id, codeBadCredentials, fmt.Sprintf("%s is a user of auth.users, who signs in with a password or certificate: the holder of a token needs a name of its own", validText(u.Name))
	}
	a.logins.tokenSucceeded(from, c.password)
	id = a.identity(authUser{User: u.User})
	id.Expires, id.Bearer, id.Token, id.Revoked = u.Expires, true, u.ID, u.Revoked
	if why = a.denied(id, credentials{local: c.local}); why != "" {
		return Identity{}, codeBadCredentials, why
	}
	return id, codeSuccess, ""
}
