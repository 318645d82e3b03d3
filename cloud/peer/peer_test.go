// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"io"
	"net"
	"os"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/clusterca"
)

// log is the log, as far as hubs know who owns it.
type log struct {
	mu      sync.Mutex
	owner   Owner
	changed chan struct{}
}

func (l *log) get() (Owner, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owner, l.changed
}

func (l *log) set(o Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.owner, l.changed = o, make(chan struct{})
}

func startHub(t *testing.T, name string, l *log, change ...func(*Hubs)) *Hubs {
	t.Helper()
	ca, err := clusterca.New(sealed.Key{1})
	require.NoError(t, err)
	h, err := Listen(Options{Listen: "127.0.0.1:0", Name: name, Owner: l.get, TLS: ca.Config(), Log: zerolog.Nop()})
	require.NoError(t, err)
	for _, f := range change {
		f(h)
	}
	ended := make(chan error, 1)
	go func() { ended <- h.Run(context.Background()) }()
	t.Cleanup(func() {
		_ = h.Close()
		require.NoError(t, <-ended)
	})
	return h
}

// sayName has a hub say its name, and then what it is sent, on each stream of a purpose.
func sayName(h *Hubs, name string) {
	h.Handle("say", func(s Stream) {
		_, _ = io.WriteString(s, name+" to "+s.Hub+": ")
		_, _ = io.Copy(s, s)
	})
}

func exchange(t *testing.T, s net.Conn, err error, text string) string {
	t.Helper()
	require.NoError(t, err)
	defer s.Close()
	_, err = io.WriteString(s, text)
	require.NoError(t, err)
	want := text[len(text)-1]
	var got []byte
	for b := make([]byte, 1); len(got) == 0 || got[len(got)-1] != want; {
		_, err := s.Read(b)
		require.NoError(t, err)
		got = append(got, b[0])
	}
	return string(got)
}

func TestHubsOpenStreamsToTheOwnerAndItToThem(t *testing.T) {
	l := &log{changed: make(chan struct{})}
	one, two := startHub(t, "hub-1", l), startHub(t, "hub-2", l)
	sayName(one, "hub-1")
	sayName(two, "hub-2")
	_, err := two.Dial(t.Context(), "say")
	require.ErrorIs(t, err, ErrNoOwner)
	l.set(Owner{"hub-1", one.Addr().String()})
	s, err := two.Dial(t.Context(), "say")
	require.Equal(t, "hub-1 to hub-2: a!", exchange(t, s, err, "a!"))
	_, err = one.Dial(t.Context(), "say")
	require.ErrorIs(t, err, ErrSelf)
	_, err = two.Dial(t.Context(), "sing")
	require.ErrorIs(t, err, ErrRefused)
	require.Equal(t, []string{"hub-2"}, one.Connected())
	s, err = one.DialHub(t.Context(), "hub-2", "say")
	require.Equal(t, "hub-2 to hub-1: b!", exchange(t, s, err, "b!"))
	_, err = one.DialHub(t.Context(), "hub-3", "say")
	require.ErrorIs(t, err, ErrUnknown)
}

func TestStreamsToAHubThatOwnsTheLogNoMoreEnd(t *testing.T) {
	l := &log{changed: make(chan struct{})}
	one, two, three := startHub(t, "hub-1", l), startHub(t, "hub-2", l), startHub(t, "hub-3", l)
	sayName(one, "hub-1")
	sayName(two, "hub-2")
	l.set(Owner{"hub-1", one.Addr().String()})
	s, err := three.Dial(t.Context(), "say")
	require.NoError(t, err)
	l.set(Owner{"hub-2", two.Addr().String()}) // hub-1 is there still, as one that is paused
	require.NoError(t, s.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = io.Copy(io.Discard, s)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	s, err = three.Dial(t.Context(), "say")
	require.Equal(t, "hub-2 to hub-3: c!", exchange(t, s, err, "c!"))
}

// An owner that comes up after the others is reached without anybody's asking.
func TestAConnectionToTheOwnerIsMadeAgain(t *testing.T) {
	l := &log{changed: make(chan struct{})}
	two := startHub(t, "hub-2", l)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	l.set(Owner{"hub-1", gone.Addr().String()})
	_, err = two.Dial(t.Context(), "say")
	require.ErrorContains(t, err, "store.peer.advertise")
	one := startHub(t, "hub-1", l)
	sayName(one, "hub-1")
	l.set(Owner{"hub-1", one.Addr().String()})
	require.Eventually(t, func() bool { return len(two.Connected()) == 1 }, 10*time.Second, 10*time.Millisecond)
	two.mu.Lock()
	cut := two.sessions["hub-1"][0]
	two.mu.Unlock()
	_ = cut.Close()
	require.Eventually(t, func() bool { return two.session("hub-1") != nil }, 10*time.Second, 10*time.Millisecond)
	s, err := two.Dial(t.Context(), "say")
	require.Equal(t, "hub-1 to hub-2: d!", exchange(t, s, err, "d!"))
}

func TestWhereOtherHubsReachThisOne(t *testing.T) {
	h := startHub(t, "hub-1", &log{changed: make(chan struct{})})
	_, port, err := net.SplitHostPort(h.Addr().String())
	require.NoError(t, err)
	for advertise, want := range map[string]string{"": "127.0.0.1:" + port, "h1": "h1:" + port, "h1:99": "h1:99", "fd00::1": "[fd00::1]:" + port} {
		got, err := h.Address(advertise)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestNobodyButAHubOfTheClusterGetsIn(t *testing.T) {
	l := &log{changed: make(chan struct{})}
	one := startHub(t, "hub-1", l)
	l.set(Owner{"hub-1", one.Addr().String()})
	other, err := clusterca.New(sealed.Key{2})
	require.NoError(t, err)
	stranger, err := Listen(Options{Listen: "127.0.0.1:0", Name: "hub-2", Owner: l.get, TLS: other.Config(), Log: zerolog.Nop()})
	require.NoError(t, err)
	defer stranger.Close()
	_, err = stranger.Dial(t.Context(), "say")
	require.ErrorContains(t, err, "unknown authority")
	unchecked := other.Config()
	unchecked.InsecureSkipVerify, unchecked.VerifyConnection = true, nil
	stranger.o.TLS = unchecked
	_, err = stranger.Dial(t.Context(), "say")
	require.ErrorContains(t, err, "certificate")
	unchecked.GetClientCertificate = nil
	_, err = stranger.Dial(t.Context(), "say")
	require.ErrorContains(t, err, "certificate")
	require.Empty(t, one.Connected())
	wrong := startHub(t, "hub-3", l)
	l.set(Owner{"hub-2", one.Addr().String()})
	_, err = wrong.Dial(t.Context(), "say")
	require.ErrorContains(t, err, "is hub-1, and not hub-2")
}

// shortListener has no descriptor for the first connection.
type shortListener struct {
	net.Listener
	was bool
}

func (l *shortListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil && !l.was {
		l.was, err = true, syscall.EMFILE
		_ = conn.Close()
	}
	return conn, err
}

func TestHubsAreTakenAfterAShortageOfDescriptors(t *testing.T) {
	l := &log{changed: make(chan struct{})}
	one, two := startHub(t, "hub-1", l, func(h *Hubs) { h.listener = &shortListener{Listener: h.listener} }), startHub(t, "hub-2", l)
	sayName(one, "hub-1")
	l.set(Owner{"hub-1", one.Addr().String()})
	require.Eventually(t, func() bool { return len(one.Connected()) == 1 }, 10*time.Second, 10*time.Millisecond)
	s, err := two.Dial(t.Context(), "say")
	require.Equal(t, "hub-1 to hub-2: e!", exchange(t, s, err, "e!"))
}

func TestAStreamWithoutAnythingToReadHoldsNoBuffer(t *testing.T) {
	l := &log{changed: make(chan struct{})}
	one, two := startHub(t, "hub-1", l), startHub(t, "hub-2", l)
	sayName(one, "hub-1")
	l.set(Owner{"hub-1", one.Addr().String()})
	s, err := two.Dial(t.Context(), "say")
	require.NoError(t, err)
	defer s.Close()
	const burst = 200 << 10 // below a window
	_, err = s.Write(make([]byte, burst))
	require.NoError(t, err)
	buffer := func() reflect.Value {
		s := s.(*muxStream)
		return reflect.ValueOf(s.Stream).Elem().FieldByName("recvBuf")
	}
	_, err = io.ReadFull(s, make([]byte, 1))
	require.NoError(t, err)
	require.False(t, buffer().IsNil())
	for left := burst + len("hub-1 to hub-2: ") - 1; left > 0; {
		n, err := s.Read(make([]byte, 4<<10))
		require.NoError(t, err)
		left -= n
	}
	require.NoError(t, s.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err = s.Read(make([]byte, 4<<10))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "as of a socket")
	require.True(t, buffer().IsNil())
}

func TestStrangersWhoWaitKeepNoHubOut(t *testing.T) {
	l := &log{changed: make(chan struct{})}
	a := startHub(t, "a", l)
	first, err := net.Dial("tcp", a.Addr().String())
	require.NoError(t, err)
	defer first.Close()
	for range mostUnproven {
		stranger, err := net.Dial("tcp", a.Addr().String())
		require.NoError(t, err)
		defer stranger.Close()
	}
	require.NoError(t, first.SetReadDeadline(time.Now().Add(handshakeTime/2)))
	_, err = first.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the oldest one ends before its time")

	b := startHub(t, "b", l)
	l.set(Owner{"a", a.Addr().String()})
	require.Eventually(t, func() bool { return len(b.Connected()) == 1 }, 10*time.Second, time.Millisecond)
	a.mu.Lock()
	defer a.mu.Unlock()
	require.LessOrEqual(t, len(a.unproven), mostUnproven)
}
