// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/edgebus/edgebus/mappers"
)

// Habits are what simulated devices do besides, as real ones do: see drivertest.DeviceHabit, whose names they have. The zero value has none.
type Habits struct {
	mu      sync.Mutex
	devices map[string]*habits
}

// habits are those of a device.
type habits struct {
	on       []string
	requests map[string]int // by what was asked for
	writes   int
	closed   bool // the connection
	before   map[string]shownValue
}

// shownValue is the value before a write, and until when it is still told.
type shownValue struct {
	value string
	until time.Time
}

// Set switches a habit of a device on or off.
func (h *Habits) Set(device, habit string, on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.of(device)
	d.on = slices.DeleteFunc(d.on, func(s string) bool { return s == habit })
	if on {
		d.on = append(d.on, habit)
	}
}

// Wrote is how often a device was written to.
func (h *Habits) Wrote(device string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of(device).writes
}

func (h *Habits) of(device string) *habits {
	if h.devices == nil {
		h.devices = map[string]*habits{}
	}
	if h.devices[device] == nil {
		h.devices[device] = &habits{requests: map[string]int{}, before: map[string]shownValue{}}
	}
	return h.devices[device]
}

var (
	errNoAnswer   = errors.New("virtual: no answer")
	errAnswerLost = fmt.Errorf("%w: it got lost", errNoAnswer) // the device has done what it was asked for
)

// request lets a device answer a request, or not.
func (h *Habits) request(ctx context.Context, device, what string, silent bool) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	d := h.of(device)
	d.requests[what]++
	odd, has := d.requests[what]%2 == 1, func(habit string) bool { return slices.Contains(d.on, habit) }
	var wait time.Duration
	var err error
	switch {
	case has("dead"), has("silent property") && silent:
		wait, err = 150*time.Millisecond, errNoAnswer
	case has("stranger"):
		err = mappers.NotTheDevice(errors.New("virtual: another device has answered"))
	case has("busy") && odd:
		err = mappers.Busy(errors.New("virtual: the device is busy"))
	case has("loses answers") && odd:
		wait, err = 20*time.Millisecond, errAnswerLost
	case d.closed:
		err = mappers.NotSent(io.EOF)
	case has("slow"):
		wait = 300 * time.Millisecond
	}
	d.closed = err == nil && has("closes connection")
	h.mu.Unlock()
	if wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// reconnected gives a device a fresh connection.
func (h *Habits) reconnected(device string) {
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.of(device).closed = false
	}
}

// read is what a device tells in place of a value.
func (h *Habits) read(device, property, value string, first bool) string {
	if h == nil {
		return value
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.of(device)
	if old := d.before[property]; time.Now().Before(old.until) {
		return old.value
	}
	if first && slices.Contains(d.on, "no value") {
		return "none"
	}
	return value
}

// wrote notes that a device has taken a value, and returns whether its answer gets lost.
func (h *Habits) wrote(device, property, before string) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.of(device)
	d.writes++
	if slices.Contains(d.on, "old value") {
		d.before[property] = shownValue{before, time.Now().Add(time.Second)}
	}
	if slices.Contains(d.on, "loses writes") {
		return errNoAnswer
	}
	return nil
}
