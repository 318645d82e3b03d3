// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/cluster"
	"github.com/edgebus/edgebus/cloud/jetstream"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// Frames are given up when they are old, and each hub that was heard lately has them.
func TestFramesAreTrimmedWhenTheyAreOldAndAllHaveThem(t *testing.T) {
	now := time.Now()
	p := pastPositions{keep: time.Hour}
	trim := func(minutes int, at ordered.Position, others ...cluster.HeardHub) ordered.Position {
		return p.trimmable(now.Add(time.Duration(minutes)*time.Minute), at, others)
	}
	heard := func(minutes int, at ordered.Position) cluster.HeardHub {
		return cluster.HeardHub{Hub: cluster.Hub{At: at}, When: now.Add(time.Duration(minutes) * time.Minute)}
	}
	require.Zero(t, trim(0, 10_000, heard(0, 10_000)))
	require.Zero(t, trim(30, 20_000, heard(30, 20_000)), "nothing is an hour old")
	require.Zero(t, trim(60, 30_000), "nobody else has it")
	require.Zero(t, trim(61, 30_000, heard(0, 30_000)), "nobody else was heard within an hour")
	require.EqualValues(t, 10_000-trimSlack, trim(62, 30_000, heard(62, 30_000)))
	require.EqualValues(t, 15_000-trimSlack, trim(95, 40_000, heard(95, 40_000), heard(90, 15_000)), "one is behind")
	require.EqualValues(t, 20_000-trimSlack, trim(96, 40_000, heard(96, 40_000), heard(1, 100)), "one is away for longer than frames are kept")
}

func TestTheCommandsOfAClusterSayWhatTheyDo(t *testing.T) {
	for want, args := range map[string][]string{"status": {"--help"}, "init": {"init", "--help"}, "join BACKUP": {"join", "-h"}} {
		var said, wrong bytes.Buffer
		require.Zero(t, Main(args, &said, &wrong), args)
		require.Contains(t, said.String(), "cloudhub cluster "+want, args)
		require.Empty(t, wrong.String(), args)
	}
	var said, wrong bytes.Buffer
	require.Equal(t, 2, Main(nil, &said, &wrong))
	require.Contains(t, wrong.String(), "say one of certificates, init, import, join")
}

// Servers that are fit for nothing but trying it out are refused elsewhere; what is only to be known is said once.
func TestServersOfATrialAreTakenWithAWarning(t *testing.T) {
	var said bytes.Buffer
	here := configs.HubNATS{Servers: []string{"nats://127.0.0.1:4222", "tls://localhost:4223", "nats://[::1]:4224"}, Monitor: []string{"http://127.0.0.2:8222"}}
	report := jetstream.Report{Weak: []string{"two are on one machine"}, Expires: time.Now().Add(20 * 24 * time.Hour)}
	s := &SharedLog{cfg: here, log: zerolog.New(&said)}
	require.NoError(t, s.judge(report))
	require.NoError(t, s.judge(report))
	require.Equal(t, 1, strings.Count(said.String(), "two are on one machine"))
	require.Equal(t, 1, strings.Count(said.String(), "make new ones with `cloudhub cluster certificates`"))
	require.InDelta(t, (20 * 24 * time.Hour).Seconds(), s.certificateLeft().Seconds(), 60)
	report.Wrong = []string{"one doesn't sync"}
	require.ErrorContains(t, s.judge(report), "one doesn't sync")

	there := here
	there.Servers = []string{"nats://127.0.0.1:4222", "nats://n2:4222"}
	require.ErrorContains(t, (&SharedLog{cfg: there, log: zerolog.Nop()}).judge(report), "one doesn't sync; two are on one machine")
	there.Trial = true
	report.Wrong = nil
	require.NoError(t, (&SharedLog{cfg: there, log: zerolog.Nop()}).judge(report))
}

// What keeps a hub that stands by from taking over is in its log before it has to.
func TestWhatKeepsAHubFromTakingOverIsLoggedWhenItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		began := time.Now()
		teller := &hubTeller{
			self: func() cluster.Hub { return cluster.Hub{} }, send: func([]byte) {}, log: zerolog.New(&said),
			check: func(context.Context) error {
				if time.Since(began) < 5*checkTells*tellEvery {
					return nil
				}
				return errors.New("another hub has its name")
			},
			ask: func(context.Context) (e resource.ClusterEngine) { return e },
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go teller.run(ctx)
		time.Sleep(10 * checkTells * tellEvery) // by the clock of the test, which nobody waits for
		synctest.Wait()
		require.Equal(t, 1, strings.Count(said.String(), "\n"), said.String())
		require.Contains(t, said.String(), "another hub has its name")
	})
}

// A hub that others tell of a clock or a name that is its own doesn't take the log.
func TestAHubWithAWrongClockOrATakenNameTakesNoLog(t *testing.T) {
	tell := func(s *SharedLog, h cluster.Hub) {
		text, err := json.Marshal(h)
		require.NoError(t, err)
		s.teller.hear(text)
	}
	s := &SharedLog{name: "a", member: cluster.New(cluster.Options{})}
	require.NoError(t, s.agrees())
	tell(s, cluster.Hub{Name: "a", Instance: 1, Clock: time.Now()})
	tell(s, cluster.Hub{Name: "b", Instance: 2, Clock: time.Now().Add(time.Hour)})
	require.ErrorContains(t, s.agrees(), "the hub b is 1h0m0s ahead")
	s.clocks = map[string]time.Duration{"n1": 0}
	require.NoError(t, s.agrees(), "a server agrees")
	s.clocks["n2"] = time.Hour
	require.ErrorContains(t, s.agrees(), "the server n2 is 1h0m0s ahead")
	tell(s, cluster.Hub{Name: "b", Instance: 2, Clock: time.Now()})
	require.NoError(t, s.agrees())
	tell(s, cluster.Hub{Name: "a", Instance: 3, Clock: time.Now()})
	tell(s, cluster.Hub{Name: "a", Instance: 1, Clock: time.Now()})
	require.ErrorContains(t, s.agrees(), "another hub has the name a, too: set another store.nats.name")
}

// A server that is behind for a moment is as it must be; one that doesn't catch up leaves the log with one copy less.
func TestForHowLongAServerOfTheLogIsBehindIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at, lags := ordered.Position(100), map[string]uint64{"n1": 0, "n2": 3, "n3": 0}
		s := &SharedLog{name: "a", member: cluster.New(cluster.Options{})}
		s.teller.self = func() cluster.Hub { at += 10; return cluster.Hub{Name: "a", Instance: 1, At: at} }
		s.teller.send = func(text []byte) { s.teller.hear(text) }
		s.teller.check = func(context.Context) error { return nil }
		s.teller.ask = func(context.Context) (e resource.ClusterEngine) {
			e.End = uint64(at)
			for _, name := range slices.Sorted(maps.Keys(lags)) {
				e.Servers = append(e.Servers, resource.ClusterServer{Name: name, Lag: lags[name]})
			}
			lags["n3"] += 10 * checkTells // it stays where it is
			return e
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go s.teller.run(ctx)
		time.Sleep(time.Minute + time.Second) // by the clock of the test, which nobody waits for
		synctest.Wait()
		f := s.count()
		require.Len(t, f.engine.Servers, 3)
		require.Zero(t, f.engine.Servers[0].BehindSeconds)
		require.Less(t, f.engine.Servers[1].BehindSeconds, 3.0)
		require.InDelta(t, 60, f.engine.Servers[2].BehindSeconds, 5)
		require.InDelta(t, 60, f.serversBehind().Seconds(), 5)
	})
}

func TestAHubThatHasJustStartedHearsTheOthersBeforeItSaysHowTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		teller := &hubTeller{
			self: func() cluster.Hub { return cluster.Hub{} }, send: func([]byte) {}, check: func(context.Context) error { return nil },
			ask: func(context.Context) (e resource.ClusterEngine) { return e },
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go teller.run(ctx)
		synctest.Wait()
		began := time.Now()
		teller.awaitOthers(ctx)
		require.Greater(t, time.Since(began), tellEvery)
		began = time.Now()
		teller.awaitOthers(ctx)
		require.Zero(t, time.Since(began), "they have told")
	})
}

// Others may ask how a hub is before it has opened the log.
func TestAHubThatIsAskedBeforeItHasTheLogGoesOn(t *testing.T) {
	s := &SharedLog{name: "a", drained: &drainedState{}}
	s.teller.self, s.teller.send = s.self, s.tell
	s.teller.hear([]byte(`{"name":"b","instance":1,"asks":true}`))
	require.Len(t, s.others(time.Now()), 1)
}

// Who may come in is each hub's own setting: one that lets others in than the hub that serves is told of, before it takes over. Nobody who hears the hubs learns
// what the settings are.
func TestHubsThatLetOthersInAreToldOf(t *testing.T) {
	key := sealed.NewKey()
	digest := func(change func(*configs.HubAuth)) string {
		a := configs.HubAuth{Auth: configs.Auth{Users: []configs.User{{Name: "ann", PasswordHash: "$a", Role: "operator"}}}, Authority: configs.Authority{Cert: "a.pem"}}
		change(&a)
		return authDigest(a, key)
	}
	same := digest(func(*configs.HubAuth) {})
	require.Equal(t, same, digest(func(a *configs.HubAuth) { a.Authority.Cert, a.OIDC.RedirectURL, a.Topics = "b.pem", "https://b", "/b" }), "each hub has its own")
	others := map[string]bool{same: true}
	for _, change := range []func(*configs.HubAuth){
		func(a *configs.HubAuth) { a.Users[0].PasswordHash = "$b" },
		func(a *configs.HubAuth) { a.Users = nil },
		func(a *configs.HubAuth) { a.Deny = []configs.Denied{{Name: "ann"}} },
		func(a *configs.HubAuth) { a.Nodes = "any" },
	} {
		d := digest(change)
		require.False(t, others[d])
		others[d] = true
	}
	require.NotEqual(t, same, authDigest(configs.HubAuth{}, sealed.NewKey()))

	s := &SharedLog{name: "a", version: "v1", auth: same, drained: &drainedState{}}
	s.teller.self, s.teller.send = s.self, s.tell
	hear := func(name, version, auth string) {
		text, err := json.Marshal(cluster.Hub{Name: name, Instance: 1, Version: version, Auth: auth, Clock: time.Now()})
		require.NoError(t, err)
		s.teller.hear(text)
	}
	hear("a", "v1", same)
	hear("b", "v1", same)
	hear("c", "v1", digest(func(a *configs.HubAuth) { a.Users = nil }))
	hear("d", "v2", "of a program that has more settings")
	hear("e", "v1", "")
	list := s.describeAll("a", time.Now())
	require.Len(t, list, 5)
	for _, h := range list {
		require.Equal(t, h.Name == "c", h.OtherAuth, h.Name)
	}
}

// A hub is drained if another one serves then: one that served until a moment ago, and isn't heard in the log, does not.
func TestAHubIsNotDrainedForOneThatServesNoMore(t *testing.T) {
	st := resource.ClusterStatus{Hub: "a", Owner: "b", Owned: true, Hubs: []resource.ClusterHub{{Name: "a", Role: resource.RoleStandby}, {Name: "b", Role: resource.RoleOwner}}}
	p, err := planDrain(st, false, time.Hour)
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, p.To)
	st.Owned, st.Silent = false, 2.5
	_, err = planDrain(st, false, time.Hour)
	require.EqualError(t, err, "no other hub could serve then: nothing was heard of b, which served, for 2.5 s. Nothing was changed")

	// Without most of the log's servers none serves, whoever stands by.
	st.Owner, st.Hubs[1].Role = "a", resource.RoleStandby
	_, err = planDrain(st, false, time.Hour)
	require.EqualError(t, err, "no other hub could serve then: nothing was heard of a, which served, for 2.5 s. Nothing was changed")
}

func TestServersOfTheLogGetTheirCertificatesAndSettings(t *testing.T) {
	dir, out := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "nats")
	run := func(args ...string) (string, int) {
		var said bytes.Buffer
		code := Main(append([]string{"certificates", "--data-dir", dir, "--out", out}, args...), &said, &said)
		return said.String(), code
	}
	for _, c := range [][]string{{}, {"n1/x"}, {"n1", "n2,n1"}, {""}, {"n1", "--valid", "1s"}, {"edgebus-hub"}} {
		said, code := run(c...)
		require.NotZero(t, code, "%v: %s", c, said)
	}
	said, code := run("n1,192.0.2.1", "2001:db8::2")
	require.Zero(t, code, said)
	require.Contains(t, said, "Certificates of 2 servers")
	read := func(names ...string) string {
		text, err := os.ReadFile(filepath.Join(append([]string{out}, names...)...))
		require.NoError(t, err)
		return string(text)
	}
	settings := read("n1", "nats-server.conf")
	require.Contains(t, settings, `routes: ["tls://n1:6222", "tls://[2001:db8::2]:6222"]`)
	require.Contains(t, settings, `client_advertise: "n1:4222"`)
	require.Contains(t, settings, `  advertise: "n1:6222"`, "by its IP address, which the others try otherwise, its certificate doesn't hold")
	require.Contains(t, read("2001:db8::2", "nats-server.conf"), `  advertise: "[2001:db8::2]:6222"`)
	pair, err := tls.LoadX509KeyPair(filepath.Join(out, "n1", "server.crt"), filepath.Join(out, "n1", "server.key"))
	require.NoError(t, err)
	require.NoError(t, pair.Leaf.VerifyHostname("192.0.2.1"))

	require.NoError(t, os.WriteFile(filepath.Join(out, "n1", "nats-server.conf"), []byte("somebody's own"), 0o600))
	certificate, authority := read("n1", "server.crt"), read("n1", "ca.crt")
	said, code = run("n1")
	require.Zero(t, code, said)
	require.Equal(t, "somebody's own", read("n1", "nats-server.conf"))
	require.Equal(t, authority, read("n1", "ca.crt"), "with the same key it is the same")
	require.NotEqual(t, certificate, read("n1", "server.crt"))
}
