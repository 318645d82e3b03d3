package broker

import (
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/configs/password"
	"github.com/edgebus/edgebus/topics"
)

func never() bool { return false }

func TestTrial07ParallelGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(20, 1, time.Now)
		var looked, refused atomic.Int64
		slow := func() bool { looked.Add(1); time.Sleep(time.Second); return false } // of the bubble's clock
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() {
				if g.check("a", "ann", fmt.Append(nil, i), slow) == tooMany {
					refused.Add(1)
				}
			})
		}
		synctest.Wait()
		require.Equal(t, int64(280), refused.Load(), "they are told at once")
		all.Wait()
		require.Equal(t, int64(20), looked.Load())
		require.Equal(t, right, g.check("b", "ann", []byte("word"), func() bool { return true }), "who is elsewhere isn't kept out")
		require.Equal(t, tooMany, g.check("a", "ann", []byte("word"), func() bool { return true }))
		time.Sleep(guardTime + time.Second) // of the bubble's clock
		require.Equal(t, right, g.check("a", "ann", []byte("word"), func() bool { return true }), "it is over")
	})
}

// What was right is remembered, and looked at once however many bring it; but it opens no way around the count.
func TestTrial07SuccessesAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(3, 1, time.Now)
		var looked atomic.Int64
		yes := func() bool { looked.Add(1); time.Sleep(time.Second); return true } // of the bubble's clock
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() { require.Equal(t, right, g.check(fmt.Sprint(i%10), "ann", []byte("word"), yes)) })
		}
		all.Wait()
		require.Equal(t, int64(1), looked.Load())
		require.Equal(t, right, g.check("1", "ann", []byte("word"), never))
		require.Equal(t, wrong, g.check("1", "bob", []byte("word"), never), "of that user")
		for i := range 3 {
			require.Equal(t, wrong, g.check("a", "ann", fmt.Append(nil, i), never))
		}
		require.Equal(t, tooMany, g.check("a", "ann", []byte("word"), never), "a guess more is a guess")
		time.Sleep(rightTime + time.Second) // of the bubble's clock
		require.Equal(t, wrong, g.check("1", "ann", []byte("word"), never), "it is forgotten")
		for d := range g.right {
			require.NotContains(t, string(d[:]), "word")
		}
	})
}

// No more wait than are through in some seconds, and those who are told so have not guessed.
func TestTrial07TheQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(20, 2_000_000, time.Now)
		room := g.queue + cap(g.turns)
		require.Equal(t, cap(g.turns)*(queuedLeast+1), room)
		answers := make(map[verdict]int)
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
		require.Equal(t, map[verdict]int{wrong: room, busy: 10}, answers)
		require.Greater(t, newGuard(20, 101, time.Now).queue, 20_000, "of hashes that are cheap any number may wait")
	})
}

// Names of users are neither told by the answers, nor by the count, nor by the work.
func TestTrial07UnknownNamesAreAsKnownOnes(t *testing.T) {
	answers := func(user string) (codes []byte, texts []string) {
		b := start(t, func(o *Options) { withUsers(o); o.Limits.WrongPasswords = 3 })
		for range 5 {
			c := dial(t, b)
			codes = append(codes, c.connect("c", credentialsOf(user, "wrong")))
			texts = append(texts, c.connack.Properties.ReasonString)
		}
		other := dial(t, b)
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

	costly := strings.Replace(hash7, "$101$", "$5000$", 1)
	a, err := newAuthenticator(Options{Auth: Auth{Users: []User{
		{Name: "cheap", PasswordHash: hash7, Role: topics.RoleViewer}, {Name: "costly", PasswordHash: costly, Role: topics.RoleViewer},
	}}})
	require.NoError(t, err)
	for _, name := range []string{"cheap", "costly", "nobody"} {
		before := password.Work.Load()
		require.False(t, a.matches(credentials{user: name, password: []byte("wrong"), hasPass: true}))
		require.Equal(t, int64(5000), password.Work.Load()-before, name)
	}
}

// One address has so many guesses in all, whatever names they are for, and a network of IPv6 is one.
func TestTrial07GuessesOfOneAddress(t *testing.T) {
	g := newGuard(2, 1, time.Now)
	for i := range 2 * guardNames {
		require.Equal(t, wrong, g.check("a", fmt.Sprint("user", i), nil, never))
	}
	require.Equal(t, tooMany, g.check("a", "one more", nil, never))
	require.Equal(t, wrong, g.check("b", "one more", nil, never))
	for i := range 2 * guardSize {
		g.check(fmt.Sprint("address", i), "x", nil, never)
	}
	require.LessOrEqual(t, len(g.counted), guardSize)
	require.Equal(t, tooMany, g.check("a", "one more", nil, never), "a flood of addresses makes it forget nothing that counts")

	for address, of := range map[string]string{
		"192.0.2.1:1": "192.0.2.1", "[::ffff:192.0.2.1]:1": "192.0.2.1", "[2001:db8:0:1:2::3]:1": "2001:db8:0:1::/64", "[fe80::1%lo]:1": "fe80::/64",
	} {
		at, err := net.ResolveTCPAddr("tcp", strings.Replace(address, "%lo", "", 1))
		require.NoError(t, err)
		require.Equal(t, of, network(at))
	}
}

// A name may be 64 KiB long, and is anybody's to choose: it isn't kept.
func TestTrial07LongNamesTakeNoRoom(t *testing.T) {
	g := newGuard(20, 1, time.Now)
	costs(t, func() int64 { return int64(len(g.counted)) << 10 }, func() {
		for i := range 1000 {
			g.check(fmt.Sprint(i), strings.Repeat(fmt.Sprint(i%10), 64<<10), nil, never)
		}
	})
}
