// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/cli/diagnosis"
	"github.com/edgebus/edgebus/cloud/cluster"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	tellEvery = 2 * time.Second
	awayAfter = 10 * time.Second // without a word a hub is away
	askPause  = 100 * time.Millisecond

	checkTells = 5 // after as many it is looked anew whether this hub may own the log
)

// hubTeller has hubs tell each other of themselves.
type hubTeller struct {
	self  func() cluster.Hub
	send  func([]byte)
	check func(context.Context) error // why this hub may not own the log
	ask   func(context.Context) resource.ClusterEngine
	log   zerolog.Logger
	hubs  cluster.Hubs

	mu     sync.Mutex
	began  time.Time // when this hub told of itself first
	latest time.Time
	barred string
	engine resource.ClusterEngine // as of the last look
}

// hear takes what a hub has told.
func (t *hubTeller) hear(text []byte) {
	now := time.Now()
	if !t.hubs.Hear(text, now) {
		return
	}
	t.mu.Lock()
	due := now.Sub(t.latest) >= askPause
	t.mu.Unlock()
	if due {
		t.tell(false)
	}
}

// tell tells the others of this hub. asks has them tell of themselves.
func (t *hubTeller) tell(asks bool) {
	t.mu.Lock()
	t.latest = time.Now()
	barred := t.barred
	t.mu.Unlock()
	hub := t.self()
	if hub.Asks = asks; !hub.Owns {
		hub.Barred = barred
	}
	text, err := json.Marshal(hub)
	if err == nil {
		t.send(text)
	}
}

// run tells until ctx ends.
func (t *hubTeller) run(ctx context.Context) {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	t.mu.Lock()
	if t.began.IsZero() {
		t.began = time.Now()
	}
	t.mu.Unlock()
	t.tell(true)
	changes := t.log.Sample(&zerolog.BurstSampler{Burst: 3, Period: time.Minute}) // of a clock that is off there is another one each time
	for n := 0; ; n++ {
		if n%checkTells == 0 {
			why := ""
			if err := t.check(ctx); err != nil {
				why = err.Error()
			}
			asking, stop := context.WithTimeout(ctx, 2*time.Second)
			engine := t.ask(asking)
			stop()
			t.noteBehind(&engine)
			t.mu.Lock()
			is := why != "" && why != t.barred
			t.barred, t.engine = why, engine
			t.mu.Unlock()
			if is {
				changes.Warn().Str("why", why).Msg("this hub can't take the log")
			}
		}
		t.tell(false)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// noteBehind notes for how long servers have lacked what the log has, as far as this hub has seen it grow.
func (t *hubTeller) noteBehind(e *resource.ClusterEngine) {
	now := time.Now()
	for i := range e.Servers {
		if s := &e.Servers[i]; s.Lag > 0 {
			_, since := t.hubs.Behind(ordered.Position(e.End-min(s.Lag, e.End)), now, now)
			s.BehindSeconds = since.Seconds()
		}
	}
}

// awaitOthers waits until the others have had time to tell of themselves to a hub that has just started.
func (t *hubTeller) awaitOthers(ctx context.Context) {
	t.mu.Lock()
	until := t.began.Add(tellEvery + askPause)
	t.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(time.Until(until)):
	}
}

// self is what this hub tells of itself.
func (s *SharedLog) self() cluster.Hub {
	h := cluster.Hub{Name: s.name, Instance: s.instance, Version: s.version, Records: cluster.RecordsVersion, Auth: s.auth, Clock: time.Now()}
	h.Drained = !s.drained.left(h.Clock).IsZero()
	if link := s.link.Load(); link != nil {
		h.Link = *link
	}
	if m := s.standing.Load(); m != nil {
		h.At, h.Owns = m.At(), m.Owns()
	}
	return h
}

// status is how the cluster is, as far as this hub knows.
func (s *SharedLog) status(ctx context.Context) resource.ClusterStatus {
	s.teller.awaitOthers(ctx)
	now := time.Now()
	st := resource.ClusterStatus{Hub: s.name, Now: resource.FormatTime(now)}
	if m := s.standing.Load(); m != nil {
		st.Owner, st.Silent, st.Records = m.Owner(), m.Silent().Seconds(), m.Records()
		st.Owned = m.Owns() || st.Owner != "" && st.Silent < s.cfg.Silence.Seconds()
	}
	st.Hubs = s.describeAll(st.Owner, now)
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	st.Engine = s.engine.Status(ctx)
	s.teller.noteBehind(&st.Engine)
	return st
}

// clusterFigures are what metrics and $SYS say of the other hubs and the log's servers.
type clusterFigures struct {
	hubs, standbys, away int // all that are known; those that could take over; those that weren't heard lately
	behind               time.Duration
	engine               resource.ClusterEngine
}

func (s *SharedLog) count() (f clusterFigures) {
	s.teller.mu.Lock()
	f.engine = s.teller.engine
	s.teller.mu.Unlock()
	now := time.Now()
	for _, h := range s.teller.hubs.List(now) {
		c := s.describe(h, s.member.Owner(), now)
		f.hubs++
		switch {
		case c.Role == resource.RoleAway:
			f.away++
		case c.Role == resource.RoleStandby && c.Barred == "":
			f.standbys++
		}
		if c.Role != resource.RoleAway {
			f.behind = max(f.behind, time.Duration(c.BehindSeconds*float64(time.Second)))
		}
	}
	return f
}

// serversBehind is for how long the server that is furthest behind has lacked something.
func (f clusterFigures) serversBehind() (most time.Duration) {
	for _, s := range f.engine.Servers {
		most = max(most, time.Duration(s.BehindSeconds*float64(time.Second)))
	}
	return most
}

func (s *SharedLog) registerHubs(gauge func(name, help string, value func() float64)) {
	figure := func(name, help string, value func(clusterFigures) float64) {
		gauge(name, help, func() float64 { return value(s.count()) })
	}
	figure("hubs", "Hubs that are known, this one included; one that is away is forgotten after a day.", func(f clusterFigures) float64 { return float64(f.hubs) })
	figure("standbys", "Hubs that stand by and could take over now.", func(f clusterFigures) float64 { return float64(f.standbys) })
	figure("hubs_away", "Hubs that were not heard for 10 s.", func(f clusterFigures) float64 { return float64(f.away) })
	figure("behind_seconds", "For how long the hub that is furthest behind, of those that are there, has lacked something.", func(f clusterFigures) float64 { return f.behind.Seconds() })
	figure("servers_behind_seconds", "For how long the log's server that is furthest behind, also of those that are gone, has lacked something, as of the last 10 s.", func(f clusterFigures) float64 {
		return f.serversBehind().Seconds()
	})
	figure("quorum", "1 when most of the log's servers are there, as of the last 10 s.", func(f clusterFigures) float64 {
		if f.engine.Quorum {
			return 1
		}
		return 0
	})
	figure("answer_seconds", "How long the log's servers took to answer, in the last 10 s.", func(f clusterFigures) float64 { return f.engine.Answer })
	gauge("epoch", "How often a hub has taken the log.", func() float64 { return float64(s.member.Epoch()) })
}

// Figures are the topics below $SYS; nil: there is one hub.
func (s *SharedLog) Figures() func() map[string]string {
	if s == nil {
		return nil
	}
	return func() map[string]string {
		f := s.count()
		return map[string]string{
			"cluster/owner": s.member.Owner(), "cluster/hubs": strconv.Itoa(f.hubs), "cluster/standbys": strconv.Itoa(f.standbys), "cluster/away": strconv.Itoa(f.away),
			"cluster/behind": fmt.Sprintf("%.1f seconds", f.behind.Seconds()), "cluster/quorum": strconv.FormatBool(f.engine.Quorum),
			"cluster/servers/behind": fmt.Sprintf("%.1f seconds", f.serversBehind().Seconds()),
			"cluster/position":       strconv.FormatUint(uint64(s.member.At()), 10), "cluster/epoch": strconv.FormatUint(s.member.Epoch(), 10),
		}
	}
}

// describeAll describes all hubs that are known.
func (s *SharedLog) describeAll(owner string, now time.Time) []resource.ClusterHub {
	all, heard := []resource.ClusterHub{}, s.teller.hubs.List(now)
	serves := slices.IndexFunc(heard, func(h cluster.HeardHub) bool { return h.Name == owner })
	for _, h := range heard {
		c := s.describe(h, owner, now)
		if serves >= 0 && h.Version == heard[serves].Version { // another version may have other settings
			c.OtherAuth = h.Auth != "" && heard[serves].Auth != "" && h.Auth != heard[serves].Auth
		}
		all = append(all, c)
	}
	return all
}

// authDigest is the same for hubs that let the same in. It is told to all who hear the hubs: the key keeps what is hashed from being guessed.
func authDigest(a configs.HubAuth, key sealed.Key) string {
	a.Topics, a.Authority = "", configs.Authority{} // files, which have a place of their own on each machine
	a.OIDC.CA, a.OIDC.ClientSecretFile, a.OIDC.RedirectURL = "", "", ""
	text, err := json.Marshal(a)
	if err != nil {
		return ""
	}
	sum := hmac.New(sha256.New, key[:])
	_, _ = fmt.Fprintf(sum, "edgebus settings of auth %s", text) // it never fails
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

func (s *SharedLog) describe(h cluster.HeardHub, owner string, now time.Time) resource.ClusterHub {
	frames, since := s.teller.hubs.Behind(h.At, h.When, now)
	c := resource.ClusterHub{
		Name: h.Name, Role: resource.RoleStandby, Version: h.Version, Records: h.Records, Position: uint64(h.At), BehindFrames: frames, BehindSeconds: since.Seconds(),
		Clock: h.Clock.Sub(h.When).Round(10 * time.Millisecond).Seconds(), Heard: now.Sub(h.When).Seconds(), Barred: h.Barred, Twice: now.Sub(h.Twice) < time.Minute,
	}
	switch {
	case now.Sub(h.When) > awayAfter:
		c.Role = resource.RoleAway
	case h.Owns || h.Name == owner && owner == s.name:
		c.Role, c.BehindFrames, c.BehindSeconds = resource.RoleOwner, 0, 0 // others have told later
	case h.Drained:
		c.Role = resource.RoleDrained
	}
	return c
}

// Status serves the status over HTTP, with what is wrong; nil: there is no cluster.
func (s *SharedLog) Status() http.Handler {
	if s == nil {
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(diagnosis.DiagnoseCluster(s.status(r.Context()))) // the client may have gone
	})
}

// Socket is where who may read the data directory asks this hub, also while it stands by.
func (s *SharedLog) Socket(dir string, snapshot backup.Snapshot, rotate backup.RotateKey, log zerolog.Logger) *backup.Server {
	server := hubdata.Program().Listen(dir, snapshot, rotate, log)
	if s != nil {
		server.Handle("GET "+clusterPath, s.Status().ServeHTTP)
		server.Handle("POST "+drainPath, s.serveDrain)
		server.Handle("POST "+undrainPath, s.serveUndrain)
	}
	return server
}
