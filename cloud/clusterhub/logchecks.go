// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/cluster"
	"github.com/edgebus/edgebus/cloud/clusterca"
	"github.com/edgebus/edgebus/cloud/jetstream"
	"github.com/edgebus/edgebus/configs"
)

const (
	// checkTime is what a check may take at a takeover: a server that is lost doesn't answer.
	checkTime = time.Second
	// answerTime is that of what is asked of each server within it.
	answerTime = 900 * time.Millisecond
	// strangerEvery is how often it is tried whether strangers may write: the servers log each attempt.
	strangerEvery = time.Hour
)

// check asks whether the servers keep what they acknowledge, for the hubs alone.
func (s *SharedLog) check(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, checkTime)
	defer stop()
	s.checking.Lock()
	open, asks := s.open, time.Since(s.asked) >= strangerEvery || len(s.open) > 0
	s.checking.Unlock()
	inspected := make(chan jetstream.Report, 1)
	go func() {
		ctx, stop := context.WithTimeout(ctx, answerTime)
		defer stop()
		if asks {
			open = jetstream.OpenServers(ctx, s.options)
		}
		inspected <- jetstream.InspectServers(ctx, s.options, s.client, s.cfg.Monitor)
	}()
	leader, ahead, err := s.engine.Check(ctx)
	report := <-inspected
	if leader != "" {
		report.Clocks[leader] = ahead // it is one server, whoever was asked for its time
	}
	if asks {
		s.checking.Lock()
		s.open, s.asked = open, time.Now()
		s.checking.Unlock()
	}
	report.Weak = append(report.Weak, open...)
	return errors.Join(err, s.judge(report))
}

// mayTake is why this hub must not own the log: it is drained, or something is wrong with the servers, or this host's clock.
func (s *SharedLog) mayTake(ctx context.Context) error {
	if err := s.drained.mayTake(); err != nil {
		return err
	}
	return s.isAble(ctx)
}

// isAble is mayTake of a hub that is not drained: hubs tell of that apart.
func (s *SharedLog) isAble(ctx context.Context) error {
	if err := s.keys.lacks(); err != nil {
		return err
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	return s.agrees()
}

// agrees says what this hub has that others must not have, or must have as well: its name, and its host's time.
func (s *SharedLog) agrees() error {
	s.checking.Lock()
	defer s.checking.Unlock()
	ahead := make(map[string]time.Duration)
	for name, by := range s.clocks {
		ahead["the server "+name] = by
	}
	now := time.Now()
	for _, h := range s.teller.hubs.List(now) {
		switch {
		case h.Name == s.name && now.Sub(h.Twice) < time.Minute:
			return fmt.Errorf("another hub has the name %s, too: set another store.nats.name (or host's name) on one of them", s.name)
		case h.Name != s.name && now.Sub(h.When) < awayAfter:
			ahead["the hub "+h.Name] = h.Clock.Sub(h.When)
		}
	}
	if by := time.Until(s.member.LogTime()); by > cluster.ClockLimit { // what is behind may just be old
		ahead["the last frame of the log"] = by
	}
	return cluster.CheckClock(ahead)
}

// certificateLeft is for how long the servers' certificates are valid; 0: none is known.
func (s *SharedLog) certificateLeft() time.Duration {
	s.checking.Lock()
	defer s.checking.Unlock()
	if s.expires.IsZero() {
		return 0
	}
	return time.Until(s.expires)
}

// inspectServers asks the servers before there is a log.
func inspectServers(ctx context.Context, c configs.HubNATS, o jetstream.Options, log zerolog.Logger) error {
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	s := &SharedLog{cfg: c, log: log}
	return s.judge(jetstream.InspectServers(ctx, o, monitorClient(o), c.Monitor))
}

// judge says what is wrong with the servers, once for what is only to be known.
func (s *SharedLog) judge(r jetstream.Report) error {
	s.checking.Lock()
	defer s.checking.Unlock()
	s.clocks = r.Clocks
	if !r.Expires.IsZero() {
		s.expires = r.Expires
	}
	warnings, wrong := slices.Clone(r.Notes), r.Wrong
	if isTrial(s.cfg) {
		warnings = append(warnings, r.Weak...)
	} else {
		wrong = append(wrong, r.Weak...)
	}
	if left := time.Until(r.Expires); !r.Expires.IsZero() && left < clusterca.WarnServer {
		warnings = append(warnings, fmt.Sprintf("a certificate of the log's servers ends at %s: make new ones with `cloudhub cluster certificates`, copy them to the servers, and have these read them (nats-server --signal reload)", r.Expires.UTC().Format(time.RFC3339)))
	}
	for _, w := range warnings {
		if !slices.Contains(s.warned, w) {
			s.log.Warn().Msg(w)
		}
	}
	s.warned = warnings
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// isTrial reports whether the servers are there to try out a cluster: that is set, or all are on this host's loopback interface.
func isTrial(c configs.HubNATS) bool {
	return c.Trial || !slices.ContainsFunc(slices.Concat(c.Servers, c.Monitor), func(address string) bool {
		u, err := url.Parse(address)
		if err != nil {
			return true
		}
		ip, err := netip.ParseAddr(u.Hostname())
		return u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback())
	})
}

// monitorClient asks the servers at their monitoring addresses.
func monitorClient(o jetstream.Options) *http.Client {
	t := &http.Transport{TLSClientConfig: o.TLS, DialContext: (&net.Dialer{Timeout: answerTime}).DialContext, DisableKeepAlives: true}
	return &http.Client{Transport: t, Timeout: 5 * time.Second}
}
