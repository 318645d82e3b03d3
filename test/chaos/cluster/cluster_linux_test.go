// SPDX-License-Identifier: Apache-2.0

// Package cluster breaks three hubs and the three servers of their log, each in a network and on a disk of its own, under load, and looks after each fault at what
// clients were promised:
//
//   - histories of registers, read and written over different hubs, are linearizable, as porcupine checks;
//   - what was acknowledged at QoS 1 and 2 is in each session, and at QoS 2 or in a session whose client was away once;
//   - wills come once;
//   - lists and watches at changing hubs miss nothing, tell nothing twice, and their versions never fall;
//   - all hubs go on with what the one that serves has.
//
// It prints its seed: SEED repeats whom which fault strikes. ROUNDS are drawn of FAULTS (globs with commas between; all), and a hub is broken as well in
// those that break one server to their end; or each fault goes on for MINUTES. An interrupt ends that with the round. Without both it is the mix of CI.
//
// A server that led the log and was cut off may take minutes to catch up (docs/cluster.md, Repair). It is given what the others have, as is said there, and
// counted; what comes after looks whether anything is lost.
package cluster

import (
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func number(name string) int {
	n, _ := strconv.Atoi(os.Getenv(name))
	return n
}

// pickFaults is which faults FAULTS means.
func pickFaults(t *testing.T, all []string) (list []string) {
	globs := os.Getenv("FAULTS")
	if globs == "" {
		return all
	}
	for _, name := range all {
		if slices.ContainsFunc(strings.Split(globs, ","), func(glob string) bool { is, _ := path.Match(glob, name); return is }) {
			list = append(list, name)
		}
	}
	require.NotEmpty(t, list, "FAULTS is none of %s", all)
	return list
}

func TestHubsOnHostsOfTheirOwnAreBroken(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seed = n
	}
	c := newHubs(t, seed, nil)
	c.load = startLoad(c, seed)
	faults := c.faults()
	names := pickFaults(t, slices.Sorted(maps.Keys(faults)))
	r := &faultRounds{c: c, seed: seed, faults: faults, count: map[string]int{}, began: time.Now()}
	defer r.sum()
	interrupted, stop := signal.NotifyContext(t.Context(), os.Interrupt)
	defer stop()
	switch minutes, count := number("MINUTES"), number("CLUSTER_ROUNDS"); {
	case minutes > 0:
		for _, name := range names {
			for until := time.Now().Add(time.Duration(minutes) * time.Minute); interrupted.Err() == nil && time.Now().Before(until); {
				r.round(name)
			}
		}
	case count > 0:
		for r.done < count && interrupted.Err() == nil {
			r.round(r.drawTogether(names)...)
		}
	default:
		for range names {
			if time.Since(r.began) < mixTime {
				r.round(r.draw(names))
			}
		}
	}
	require.Greater(t, c.load.operations, 10*r.done, "operations of registers")
	require.Greater(t, c.load.mail.acknowledged(), 10*r.done)
	require.Greater(t, c.load.watches.count, r.done, "objects that watches are to tell of")
	require.Greater(t, 2*len(c.load.mail.wills), r.done, "wills")
}

const mixTime = 3 * time.Minute

// faultRounds are faults, one after the other.
type faultRounds struct {
	c      *hubs
	seed   uint64
	faults map[string]func()
	deck   []string // kinds that are to come before one comes again
	now    []string // kinds of the round
	done   int
	struck int // faults: a round may have two
	count  map[string]int
	began  time.Time
}

// draw is the next kind: each comes once before one comes again.
func (r *faultRounds) draw(names []string) string {
	if len(r.deck) == 0 {
		r.deck = slices.Clone(names)
		r.c.dice.Shuffle(len(r.deck), func(i, j int) { r.deck[i], r.deck[j] = r.deck[j], r.deck[i] })
	}
	last := len(r.deck) - 1
	name := r.deck[last]
	r.deck = r.deck[:last]
	return name
}

// drawTogether is the next kind. If it breaks one server for the rest of the round, one that breaks a hub meanwhile comes with it.
func (r *faultRounds) drawTogether(names []string) []string {
	drawn := []string{r.draw(names)}
	if !slices.Contains([]string{
		"server-killed", "server-unplugged", "server-hears-nobody", "server-is-not-heard", "server-loses-packets", "server-full", "server-power",
	}, drawn[0]) {
		return drawn
	}
	i := slices.IndexFunc(r.deck, func(name string) bool { return strings.HasPrefix(name, "hub-") && name != "hub-and-leader-killed" })
	if i >= 0 {
		drawn = append(drawn, r.deck[i])
		r.deck = slices.Delete(r.deck, i, i+1)
	}
	return drawn
}

const wholeEvery = 5 // rounds, after which the sessions are asked whose clients are away

func (r *faultRounds) round(kinds ...string) {
	c, began := r.c, time.Now()
	c.said, r.now = nil, kinds
	c.load.registers.next(r.done)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		c.load.mail.will(c.load.ctx, fmt.Sprint("will-", r.done))
	}()
	c.sleep(200 * time.Millisecond) // of work before
	for _, name := range kinds {
		r.faults[name]()
	}
	broken := time.Since(began)
	c.whole()
	c.sleep(200 * time.Millisecond) // and after
	<-gone
	whole := r.done%wholeEvery == wholeEvery-1
	err := c.load.check(whole)
	require.NoError(c.t, err, "round %d, SEED=%d: %s %v", r.done, r.seed, kinds, c.said)
	c.t.Logf("%d %s %v: broken %s, all %s", r.done, strings.Join(kinds, "+"), c.said, broken.Round(100*time.Millisecond), time.Since(began).Round(100*time.Millisecond))
	r.done++
	for _, name := range kinds {
		r.count[name]++
		r.struck++
	}
}

func (r *faultRounds) sum() {
	verdict := "clean"
	if r.c.t.Failed() {
		verdict = fmt.Sprintf("FAILED in round %d: %s %v", r.done, strings.Join(r.now, "+"), r.c.said)
	}
	line := fmt.Sprintf("%s: %s: SEED=%d, %d faults in %d rounds and %s, %s, servers that did not catch up: %d; %v", r.c.t.Name(), verdict, r.seed, r.struck, r.done, time.Since(r.began).Round(time.Second), r.c.load, r.c.renewed, r.count)
	r.c.t.Log(line)
	if file := os.Getenv("CHAOS_SUMMARY"); file != "" {
		if f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err == nil {
			fmt.Fprintln(f, line)
			_ = f.Close()
		}
	}
}

// Servers that acknowledge what isn't on their disks lose it when the power of all of them goes: the test of those that don't is able to see that.
func TestServersThatSyncRarelyAreSeenToLoseTheLog(t *testing.T) {
	c := newHubs(t, 1, func(_ int, settings string) string {
		return strings.Replace(settings, "sync_interval: always", "sync_interval: 2m", 1)
	})
	c.load = startLoad(c, 1)
	c.load.registers.next(0)
	c.sleep(2 * hubSilence) // of work that nobody syncs
	for _, h := range c.each {
		c.cutHub(h) // or a hub has what the servers have lost, and says so
	}
	c.cutServers(0, 1, 2)
	c.mend()
	lost := ""
	require.Eventually(t, func() bool {
		for _, h := range c.each {
			if !c.Running(h.name) {
				_ = c.tryStart(h) // it may end again
			}
			said, _ := os.ReadFile(c.LogFile(h.name))
			if strings.Contains(string(said), "the log lacks what this hub has read") || strings.Contains(string(said), "there is no stream") {
				lost = h.name + " says that the log lacks what it has read"
			}
		}
		if lost == "" && c.serving(c.each...) != nil {
			if err := c.load.mail.missing(c.load.mail.roaming); err != nil {
				lost = err.Error()
			}
		}
		return lost != ""
	}, recovery, 100*time.Millisecond, "nothing is lost, though nobody synced: the test sees nothing")
	t.Log("as it must:", lost)
}
