// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/edgebus/edgebus/topics/backoff"
)

const (
	statePause   = 100 * time.Millisecond
	stateTimeout = 500 * time.Millisecond
)

// clusterState is what hubs and servers say of themselves.
type clusterState struct {
	hubs, servers []string // addresses that are asked

	mu      sync.Mutex
	serving int      // the hub that serves; -1: none
	says    []string // of each hub: serves, stands by, or empty: it doesn't answer
	whole   []bool   // of each server
}

// watch asks until ctx ends.
func (s *clusterState) watch(ctx context.Context) {
	for {
		s.ask(ctx)
		if !backoff.Sleep(ctx, statePause) {
			return
		}
	}
}

func (s *clusterState) ask(ctx context.Context) {
	says, whole := make([]string, len(s.hubs)), make([]bool, len(s.servers))
	var all sync.WaitGroup
	for i, at := range s.hubs {
		all.Go(func() { says[i] = askHub(ctx, at) })
	}
	for i, at := range s.servers {
		all.Go(func() { _, err := fetchText(ctx, "http://"+at+"/healthz"); whole[i] = err == nil })
	}
	all.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says, s.whole, s.serving = says, whole, -1
	for i, what := range says {
		if what == hubServes {
			s.serving = i
		}
	}
}

const (
	hubServes   = "serves"
	hubStandsBy = "stands by"
)

var ownerMetric = regexp.MustCompile(`(?m)^edgebus_cluster_owner ([01])`)

// askHub asks a hub what it does. One that has the log serves when it is ready.
func askHub(ctx context.Context, address string) string {
	text, err := fetchText(ctx, "http://"+address+"/metrics")
	owns := ownerMetric.FindStringSubmatch(text)
	switch {
	case err != nil || owns == nil:
		return ""
	case owns[1] == "0":
		return hubStandsBy
	}
	if _, err := fetchText(ctx, "http://"+address+"/readyz?owner"); err != nil {
		return hubStandsBy
	}
	return hubServes
}

func fetchText(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return string(text), err
}

// now is which hub serves (-1: none), what each says, and which servers are whole.
func (s *clusterState) now() (serving int, says []string, whole []bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving, s.says, s.whole
}

// lead has an address lead to the hub that serves, as a balancer does, until ctx ends. While none does it leads to one that says why. A hub that ends closes its
// connections itself.
func (s *clusterState) lead(ctx context.Context, l net.Listener, hubs []string) {
	end := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer end()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		serving, says, _ := s.now()
		if serving < 0 {
			serving = slices.IndexFunc(says, func(what string) bool { return what != "" })
		}
		if serving < 0 {
			_ = conn.Close()
			continue
		}
		go carryConn(conn, hubs[serving])
	}
}

func carryConn(from net.Conn, address string) {
	defer from.Close()
	to, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}()
	_, _ = io.Copy(to, from)
	_ = to.Close()
}
