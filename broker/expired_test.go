package broker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/configs/limits"
)

func forSeconds(n uint32) pubOption {
	return props(packets.Properties{MessageExpiryInterval: n})
}

// What nobody gets any more takes nobody's place, in memory or on disk.
func TestExpiredRetainedMessagesMakeRoom(t *testing.T) {
	dir, now := t.TempDir(), &clock{now: time.Now()}
	var all limits.Size // one user has half of it
	for i := range 50 {
		for _, topic := range []string{"short", "long"} {
			all += 2 * limits.Size((&session.Message{Topic: fmt.Sprintf("%s/%d", topic, i), Payload: []byte("x"), From: "pub"}).Weight())
		}
	}
	b, stop := kept(t, dir, func(o *Options) { o.Limits.Retained.Bytes, o.Now = all, now.read })
	pub := open(t, b, "pub")
	for i := range 50 {
		pub.publish1(fmt.Sprintf("short/%d", i), "x", retain, forSeconds(10))
		pub.publish1(fmt.Sprintf("long/%d", i), "x", retain, forSeconds(uint32(i%2*100)))
	}
	require.Equal(t, byte(0x97), pub.publish1("one more", "x", retain).ReasonCode)
	require.Equal(t, byte(0), pub.publish1("short/7", "s", retain).ReasonCode)
	now.add(11 * time.Second)
	require.Equal(t, byte(0), pub.publish1("one more", "x", retain).ReasonCode)
	require.Equal(t, 52, b.Stats().Retained)
	require.Equal(t, byte(0), pub.publish1("short/8", "again", retain, forSeconds(10)).ReasonCode)
	sub := open(t, b, "sub")
	sub.sub("short/+", 1)
	require.Equal(t, []string{"s", "again"}, sub.collect(2))
	sub.nothing()
	now.add(100 * time.Second)
	require.Equal(t, 26, b.forgetExpired(), "25 long ones, and short/8")
	require.Zero(t, b.forgetExpired())
	require.True(t, b.retained.next.Before(now.read().Add(2*time.Second)), "and soon it is known that no more expire")
	stop()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	defer j.Close()
	require.Equal(t, int64(27), j.Stats().Records)
}

// One whose place another may not come to take stays until that is known.
func TestAnExpiredMessageInDoubtStays(t *testing.T) {
	j, err := journal.Open(journal.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	f, now := &fickle{Journal: j}, &clock{now: time.Now()}
	b := start(t, func(o *Options) { o.Journal, o.Now = f, now.read })
	set := func(payload string) chan error {
		done := make(chan error, 1)
		m := Message{Topic: "a", Payload: []byte(payload), QoS: 1, Retain: true, Props: Properties{Expiry: 10}}
		b.Pass(m, func(err error) { done <- err })
		return done
	}
	require.NoError(t, <-set("first"))
	f.fail = true
	second := set("second") // fails with the next commit
	now.add(11 * time.Second)
	require.Zero(t, b.forgetExpired())
	elsewhere := make(chan error, 1)
	b.Pass(Message{Topic: "b", Payload: []byte("x"), QoS: 1, Retain: true}, func(err error) { elsewhere <- err })
	require.Error(t, <-second)
	require.NoError(t, <-elsewhere)
	require.Equal(t, "first", string(b.retained.get("a").Payload))
	now.add(2 * time.Second)
	require.Equal(t, 1, b.forgetExpired())
	require.Nil(t, b.retained.get("a"))
}

func TestExpiredMessagesAreForgottenNowAndThen(t *testing.T) {
	now := &clock{now: time.Now()}
	b, err := New(Options{Now: now.read, Log: zerolog.Nop()})
	require.NoError(t, err)
	b.sweeps = time.Millisecond
	b.Publish(Message{Topic: "a", Payload: []byte("x"), Retain: true, Props: Properties{Expiry: 10}})
	b.Publish(Message{Topic: "b", Payload: []byte("x"), Retain: true})
	now.add(11 * time.Second)
	served := make(chan error, 1)
	go func() { served <- b.Serve(context.Background()) }()
	require.Eventually(t, func() bool { return b.Stats().Retained == 1 }, patience, time.Millisecond)
	require.NoError(t, errors.Join(b.Close(t.Context()), <-served))
}
