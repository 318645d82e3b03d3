// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/harness"
)

// faultEvent is one thing that is broken, when, and for how long.
type faultEvent struct {
	after, lasts time.Duration
	what         string // kill, blackout, term, freeze, cut, drop, slow, replace, clock
	whom         []string
	cut          string
	ahead        time.Duration // of the right time, from then on
}

func (e faultEvent) String() string {
	if e.what == "clock" {
		return fmt.Sprintf("at %d ms the clock of %s is set to %s from the right time", e.after.Milliseconds(), strings.Join(e.whom, "+"), e.ahead)
	}
	return fmt.Sprintf("at %d ms %s %s%s for %d ms", e.after.Milliseconds(), e.what, strings.Join(e.whom, "+"), e.cut, e.lasts.Milliseconds())
}

// faultPlan is what happens in a round. No two faults touch the same program.
type faultPlan []faultEvent

func (p faultPlan) String() string {
	var lines []string
	for _, e := range p {
		lines = append(lines, e.String())
	}
	return strings.Join(lines, "\n")
}

var faultPrograms = []string{"hub", "core", "virtual"}

// plan draws a round's events: they come from the seed alone.
func (c *chaosRun) plan() (p faultPlan) {
	ms := func(n int) time.Duration { return time.Duration(c.chance.IntN(n)) * time.Millisecond }
	if c.chance.IntN(3) == 0 {
		p = append(p, faultEvent{after: 50*time.Millisecond + ms(300), lasts: ms(300), what: []string{"kill", "blackout", "blackout"}[c.chance.IntN(3)], whom: c.shuffled(faultPrograms)})
	} else {
		for _, i := range c.chance.Perm(len(faultPrograms))[:1+c.chance.IntN(2)] {
			what := []string{"kill", "kill", "kill", "term", "freeze"}[c.chance.IntN(5)]
			p = append(p, faultEvent{after: 50*time.Millisecond + ms(400), lasts: ms(400), what: what, whom: faultPrograms[i : i+1]})
		}
	}
	if c.chance.IntN(2) == 0 {
		e := faultEvent{after: ms(400), lasts: ms(600), what: []string{"cut", "cut", "drop", "slow"}[c.chance.IntN(4)]}
		if e.what == "cut" {
			if c.chance.IntN(6) == 0 { // longer than the link's keep-alive: both sides give the connection up
				e.lasts = 1700*time.Millisecond + ms(600)
			}
			e.cut = []string{"reset", "blackhole", "up", "down", "halfopen"}[c.chance.IntN(5)]
		}
		p = append(p, e)
	}
	if c.chance.IntN(3) == 0 {
		p = append(p, faultEvent{after: ms(500), lasts: ms(50), what: "replace", whom: []string{" guest"}})
	}
	return p
}

// carryOut does what is planned, and returns when everything is mended.
func (c *chaosRun) carryOut(t *testing.T, p faultPlan) error {
	errs := make(chan error, len(p))
	var all sync.WaitGroup
	for _, e := range p {
		if e.what != "freeze" && e.what != "clock" && slices.Contains(e.whom, "virtual") {
			c.mapperEnds++
		}
		all.Go(func() {
			time.Sleep(e.after) // chaos is a matter of moments, not of conditions
			if err := c.do(t, e); err != nil {
				errs <- fmt.Errorf("%s: %w", e, err)
			}
		})
	}
	all.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func (c *chaosRun) do(t *testing.T, e faultEvent) error {
	network := c.Node("n1").Net
	switch e.what {
	case "kill":
		return c.restart(t, e, c.Crash)
	case "blackout":
		return c.blackout(t, e, c.Crash)
	case "power":
		return c.blackout(t, e, func(name string) error { return c.powerCut(t, name) })
	case "term":
		return c.restart(t, e, c.Term)
	case "freeze":
		if err := c.Signal(e.whom[0], syscall.SIGSTOP); err != nil {
			return err
		}
		time.Sleep(e.lasts) // the fault lasts as long as the plan says
		return c.Signal(e.whom[0], syscall.SIGCONT)
	case "cut":
		cut, err := faults.ParseCut(e.cut)
		if err != nil {
			return err
		}
		network.Cut(cut)
		time.Sleep(e.lasts) // the fault lasts as long as the plan says
		network.Heal()
	case "clock":
		return c.clocks.set(e.ahead, e.whom...)
	case "replace":
		return c.replaceGuest(t, e.lasts)
	case "drop":
		network.Drop()
	case "slow":
		network.Set(faults.Conditions{Delay: 5 * time.Millisecond, Jitter: 20 * time.Millisecond, Split: true})
		time.Sleep(e.lasts) // the fault lasts as long as the plan says
		network.Set(faults.Conditions{})
	}
	return nil
}

// restart ends programs at the same moment, and starts them again in any order.
func (c *chaosRun) restart(t *testing.T, e faultEvent, end func(string) error) error {
	if err := forEachProgram(e.whom, end); err != nil {
		return err
	}
	time.Sleep(e.lasts) // the fault lasts as long as the plan says
	return forEachProgram(e.whom, func(name string) error { return c.Start(t.Context(), name) })
}

// replaceGuest deletes a device and creates another of its name, as soon as the hub listens.
func (c *chaosRun) replaceGuest(t *testing.T, pause time.Duration) error {
	request := func(method, url, body string, fine int) error {
		return harness.Eventually(t.Context(), settleTime/2, func(ctx context.Context) error {
			_, err := harness.Call(ctx, method, url, []byte(body))
			var status *harness.StatusError
			if errors.As(err, &status) && status.Code == fine {
				return nil // done the last time, whose answer was lost
			}
			return err
		})
	}
	if err := request(http.MethodDelete, c.DeviceURL("guest"), "", http.StatusNotFound); err != nil {
		return err
	}
	time.Sleep(pause) // as long as the plan says
	return request(http.MethodPost, c.DeviceURL(""), guestDevice, http.StatusConflict)
}

func (c *chaosRun) shuffled(list []string) []string {
	list = slices.Clone(list)
	c.chance.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// blackout ends programs at once, and starts one after the other. What devices
// reported is shown again by each broker by itself: neither less nor older.
func (c *chaosRun) blackout(t *testing.T, e faultEvent, end func(string) error) error {
	if err := forEachProgram(e.whom, end); err != nil {
		return err
	}
	recorders := map[string]*recorder{}
	for name, r := range map[string]*recorder{"hub": c.cloud, "core": c.node} {
		if slices.Contains(e.whom, name) {
			recorders[name] = r
		}
	}
	if err := harness.Eventually(t.Context(), settleTime/2, func(context.Context) error {
		for name, r := range recorders {
			if r.Up() {
				return fmt.Errorf("the recorder of %s has not noticed", name)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	before := map[string]map[string]uint64{}
	for name, r := range recorders {
		before[name] = r.reported()
	}
	time.Sleep(e.lasts) // the fault lasts as long as the plan says
	for _, name := range e.whom {
		if err := c.Start(t.Context(), name); err != nil {
			return err
		}
		if err := harness.Eventually(t.Context(), settleTime/2, func(context.Context) error {
			now := recorders[name]
			if now == nil {
				return nil
			}
			return olderValues(before[name], now.shown())
		}); err != nil {
			return fmt.Errorf("%s by itself: %w", name, err)
		}
	}
	return nil
}

func olderValues(before, now map[string]uint64) error {
	for topic, ver := range before {
		if now[topic] < ver {
			return fmt.Errorf("%s was shown with version %d, and is now with %d", topic, ver, now[topic])
		}
	}
	return nil
}

func forEachProgram(names []string, f func(string) error) error {
	errs := make(chan error, len(names))
	for _, name := range names {
		go func() { errs <- f(name) }()
	}
	var first error
	for range names {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}
