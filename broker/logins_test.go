// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"fmt"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/oneprocessor"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/password"
)

func TestParallelGuessesOfPasswordsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLoginThrottle(20, 1, time.Now)
		var looked, refused atomic.Int64
		slow := func() bool { looked.Add(1); time.Sleep(time.Second); return false } // of the bubble's clock
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() {
				if g.check("a", "ann", fmt.Append(nil, i), slow) == loginTooMany {
					refused.Add(1)
				}
			})
		}
		synctest.Wait()
		require.Equal(t, int64(280), refused.Load(), "they are told at once")
		all.Wait()
		require.Equal(t, int64(20), looked.Load())
		require.Equal(t, loginRight, g.check("b", "ann", []byte("word"), func() bool { return true }), "who is elsewhere isn't kept out")
		require.Equal(t, loginTooMany, g.check("a", "ann", []byte("word"), func() bool { return true }))
		time.Sleep(attemptWindow + time.Second) // of the bubble's clock
		require.Equal(t, loginRight, g.check("a", "ann", []byte("word"), func() bool { return true }), "it is over")
	})
}

// What was right is remembered, and looked at once however many bring it; but it opens no way around the count.
func TestPasswordsThatWereRightAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLoginThrottle(3, 1, time.Now)
		var looked atomic.Int64
		yes := func() bool { looked.Add(1); time.Sleep(time.Second); return true } // of the bubble's clock
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() { require.Equal(t, loginRight, g.check(fmt.Sprint(i%10), "ann", []byte("word"), yes)) })
		}
		all.Wait()
		require.Equal(t, int64(1), looked.Load())
		require.Equal(t, loginRight, g.check("1", "ann", []byte("word"), neverOver))
		require.Equal(t, loginWrong, g.check("1", "bob", []byte("word"), neverOver), "of that user")
		for i := range 3 {
			require.Equal(t, loginWrong, g.check("a", "ann", fmt.Append(nil, i), neverOver))
		}
		require.Equal(t, loginTooMany, g.check("a", "ann", []byte("word"), neverOver), "a guess more is a guess")
		time.Sleep(rememberTime + time.Second) // of the bubble's clock
		require.Equal(t, loginWrong, g.check("1", "ann", []byte("word"), neverOver), "it is forgotten")
		for d := range g.right {
			require.NotContains(t, string(d[:]), "word")
		}
	})
}

// No more wait than are through in some seconds, and those who are told so have not guessed.
func TestTheQueueOfPasswordChecksIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLoginThrottle(20, 2_000_000, time.Now)
		room := g.queue + cap(g.turns)
		require.Equal(t, cap(g.turns)*(minQueued+1), room)
		answers := make(map[loginResult]int)
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range room + 10 {
			all.Go(func() {
				v := g.check(fmt.Sprint("address", i), "ann", fmt.Append(nil, i), func() bool { time.Sleep(time.Second); return false }) // of the bubble's clock
				mu.Lock()
				answers[v]++
				mu.Unlock()
			})
		}
		all.Wait()
		require.Equal(t, map[loginResult]int{loginWrong: room, loginBusy: 10}, answers)
		require.Greater(t, newLoginThrottle(20, 101, time.Now).queue, 20_000, "of hashes that are cheap any number may wait")
	})
}

// Names of users are neither told by the answers, nor by the count, nor by the work.
func TestUnknownNamesAreAsKnownOnes(t *testing.T) {
	answers := func(user string) (codes []byte, texts []string) {
		b := startBroker(t, func(o *Options) { withUsers(o); o.Limits.WrongPasswords = 3 })
		for range 5 {
			c := dialBroker(t, b)
			codes = append(codes, c.connect("c", credentialsOf(user, "wrong")))
			texts = append(texts, c.connack.Properties.ReasonString)
		}
		other := dialBroker(t, b)
		codes = append(codes, other.connect("c", credentialsOf("somebody else", "wrong")))
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "127.0.0.1:4000"
		r.SetBasicAuth(user, "wrong")
		_, err := b.SignIn(r)
		return codes, append(texts, err.Error())
	}
	known, says := answers("op")
	unknown, saysAsWell := answers("opa")
	require.Equal(t, []byte{0x86, 0x86, 0x86, 0x9F, 0x9F, 0x86}, known)
	require.Equal(t, known, unknown)
	require.Equal(t, says, saysAsWell)

	costly := strings.Replace(hashPBKDF2, "$101$", "$5000$", 1)
	a, err := newAuthenticator(Options{Auth: Auth{Users: []User{
		{Name: "cheap", PasswordHash: hashPBKDF2, Role: topics.RoleViewer}, {Name: "costly", PasswordHash: costly, Role: topics.RoleViewer},
	}}})
	require.NoError(t, err)
	for _, name := range []string{"cheap", "costly", "nobody"} {
		before := password.RoundsDone.Load()
		require.False(t, a.matches(credentials{user: name, password: []byte("wrong"), hasPass: true}))
		require.Equal(t, int64(5000), password.RoundsDone.Load()-before, name)
	}
}

// One address has so many guesses in all, whatever names they are for, and a network of IPv6 is one.
func TestGuessesOfPasswordsAreCountedByAddress(t *testing.T) {
	g := newLoginThrottle(2, 1, time.Now)
	for i := range 2 * attemptsPerAddress {
		require.Equal(t, loginWrong, g.check("a", fmt.Sprint("user", i), nil, neverOver))
	}
	require.Equal(t, loginTooMany, g.check("a", "one more", nil, neverOver))
	require.Equal(t, loginWrong, g.check("b", "one more", nil, neverOver))
	for i := range 2 * maxRemembered {
		g.check(fmt.Sprint("address", i), "x", nil, neverOver)
	}
	require.LessOrEqual(t, len(g.counted), maxRemembered)
	require.Equal(t, loginTooMany, g.check("a", "one more", nil, neverOver), "a flood of addresses makes it forget nothing that counts")

	for address, of := range map[string]string{
		"192.0.2.1:1": "192.0.2.1", "[::ffff:192.0.2.1]:1": "192.0.2.1", "[2001:db8:0:1:2::3]:1": "2001:db8:0:1::/64", "[fe80::1%lo]:1": "fe80::/64",
	} {
		at, err := net.ResolveTCPAddr("tcp", strings.Replace(address, "%lo", "", 1))
		require.NoError(t, err)
		require.Equal(t, of, peerNetwork(at))
	}
}

// A name may be 64 KiB long, and is anybody's to choose: it isn't kept.
func TestLongNamesTakeNoRoom(t *testing.T) {
	g := newLoginThrottle(20, 1, time.Now)
	checkCost(t, func() int64 { return int64(len(g.counted)) << 10 }, func() {
		for i := range 1000 {
			g.check(fmt.Sprint(i), strings.Repeat(fmt.Sprint(i%10), 64<<10), nil, neverOver)
		}
	})
}

// Whoever is behind the same address can't lock out those whose password was right there lately.
func TestAPasswordThatWasRightLatelyPassesAFloodOfWrongOnes(t *testing.T) {
	now := time.Now()
	g := newLoginThrottle(2, 1, func() time.Time { return now })
	testSecret, always := []byte("secret"), func() bool { return true }
	require.Equal(t, loginRight, g.check("a", "boss", testSecret, always))
	now = now.Add(2 * rememberTime)
	flood := func(address, user string, n int) {
		for i := range n {
			g.check(address, user+strconv.Itoa(i), []byte("wrong"), neverOver)
			g.check(address, "boss", []byte(strconv.Itoa(i)), neverOver)
		}
	}
	flood("a", "x", 4*attemptsPerAddress)
	require.Equal(t, loginTooMany, g.check("a", "op", testSecret, always), "a name that is new there waits")
	require.Equal(t, loginTooMany, g.check("a", "boss", []byte("other"), always), "and another password")
	for range 10 {
		require.Equal(t, loginRight, g.check("a", "boss", testSecret, always))
	}
	flood("b", "x", 4*attemptsPerAddress)
	require.Equal(t, loginTooMany, g.check("b", "boss", testSecret, always), "it was right at another address")
	flood("a", "x", 2*guessesOfProven)
	require.Equal(t, loginTooMany, g.check("a", "boss", testSecret, always), "it can't be guessed without end")
	now = now.Add(attemptWindow + time.Second)
	require.Equal(t, loginRight, g.check("a", "boss", testSecret, always))

	flood("a", "x", 4*attemptsPerAddress)
	now = now.Add(2 * rememberTime)
	require.Equal(t, loginWrong, g.check("a", "boss", testSecret, neverOver), "it was changed")
	flood("a", "x", 4*attemptsPerAddress)
	require.Equal(t, loginTooMany, g.check("a", "boss", testSecret, always))

	token := []byte("ebt_token")
	require.False(t, g.mayTryToken("a", token))
	g.tokenSucceeded("a", token)
	require.True(t, g.mayTryToken("a", token))
	for i := range 2 * maxRemembered {
		g.check("c"+strconv.Itoa(i), "boss", testSecret, always)
	}
	require.LessOrEqual(t, len(g.proven), maxRemembered)
}

// On a single processor those who wait for the network run between two checks of passwords, however many wait to be checked.
func TestOnOneProcessorOthersRunBetweenChecksOfPasswords(t *testing.T) {
	oneprocessor.Use(t)
	g := newLoginThrottle(1_000_000, 1, time.Now)
	var checked atomic.Int64
	var ended atomic.Bool
	var guesses sync.WaitGroup
	for range 4 {
		guesses.Go(func() {
			for !ended.Load() {
				g.check("192.0.2.1", "op", []byte(strconv.FormatInt(checked.Add(1), 10)), func() bool { return false })
			}
		})
	}
	givesWay := oneprocessor.GivesWay(&checked)
	ended.Store(true)
	guesses.Wait()
	require.True(t, givesWay)
}
