package broker

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

func TestConnectionsOfOneUser(t *testing.T) {
	b := start(t, func(o *Options) { withUsers(o); o.Limits.PerUser = 2 })
	op := credentialsOf("op", "secret")
	first := open(t, b, "first", op)
	open(t, b, "second", op)
	more := dial(t, b)
	require.Equal(t, byte(0x97), more.connect("third", op))
	require.Equal(t, "op has as many connections as one user may have: 2 (limits.perUser)", more.connack.Properties.ReasonString)
	old := dial(t, b)
	require.Equal(t, byte(3), old.connect("third", op, v3))
	open(t, b, "other", credentialsOf("boss", "secret"))
	open(t, b, "nobody")
	open(t, b, "nobody too")
	open(t, b, "nobody three")
	open(t, b, "second", op) // takes its own place over
	require.Equal(t, int64(2), b.Stats().Rejected[fullSeats])

	ctx, end := context.WithCancel(context.Background())
	r := httptest.NewRequest("GET", "/", nil).WithContext(ctx)
	r.SetBasicAuth("op", "secret")
	_, err := b.SignIn(r)
	require.Equal(t, resource.Quota, resource.KindOf(err), "requests count as well")
	first.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}})
	require.Eventually(t, func() bool { _, err = b.SignIn(r); return err == nil }, 10*time.Second, time.Millisecond)
	more = dial(t, b)
	require.Equal(t, byte(0x97), more.connect("third", op), "the request is under way")
	end()
	require.Eventually(t, func() bool { return dial(t, b).connect("third", op) == 0 }, 10*time.Second, time.Millisecond)
}

// Who is signed in and sends bodies slowly takes half of the room at most, whatever perUser is.
func TestTrial06RequestsOfOneUser(t *testing.T) {
	b := start(t, func(o *Options) { withUsers(o); o.Limits.Requests, o.Limits.PerUser = 6, 100 })
	ctx, end := context.WithCancel(context.Background())
	ask := func(user string) error {
		r := httptest.NewRequest("POST", "/", nil).WithContext(ctx)
		r.SetBasicAuth(user, "secret")
		_, err := b.SignIn(r)
		return err
	}
	for range 3 {
		require.NoError(t, ask("view"))
	}
	err := ask("view")
	require.Equal(t, resource.Quota, resource.KindOf(err))
	require.ErrorContains(t, err, "view has as many HTTP requests under way as one user may have: 3 (half of limits.requests)")
	require.NoError(t, ask("op"))
	open(t, b, "of MQTT", credentialsOf("view", "secret"))
	end()
	ctx = context.Background()
	require.Eventually(t, func() bool { return ask("view") == nil }, 10*time.Second, time.Millisecond)
}

func TestConnectionsFromOneAddress(t *testing.T) {
	b := start(t, func(o *Options) { withUsers(o); o.Limits.PerAddress = 1 })
	open(t, b, "this host")
	open(t, b, "isn't counted")
	ctx, end := context.WithCancel(context.Background())
	ask := func(from, user string) error {
		r := httptest.NewRequest("GET", "/", nil).WithContext(ctx)
		r.RemoteAddr = from
		r.SetBasicAuth(user, "secret")
		_, err := b.SignIn(r)
		return err
	}
	require.NoError(t, ask("192.0.2.1:1000", "op"))
	require.NoError(t, ask("[2001:db8::1]:1000", "op"))
	require.ErrorContains(t, ask("[::ffff:192.0.2.1]:1001", "view"), "192.0.2.1 has as many connections as one address may have: 1 (limits.perAddress)")
	end()
	ctx = context.Background()
	require.Eventually(t, func() bool { return ask("192.0.2.1:1002", "view") == nil }, 10*time.Second, time.Millisecond)
}
