// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"sync"
	"time"
)

// HabitPlay decides how a simulator treats requests to its devices, for habits that devices of any protocol can have.
type HabitPlay struct {
	mu       sync.Mutex
	habits   map[int]map[DeviceHabit]bool
	answers  map[int]int
	requests map[requestKind]int
	writes   map[int]int
}

// requestKind is of requests of which each second one finds the device busy. Were it each second of all, the requests for another property in
// between could have one of them find it so time and again.
type requestKind struct {
	device       int
	first, write bool
}

// NewHabitPlay makes a HabitPlay of devices without habits.
func NewHabitPlay() *HabitPlay {
	return &HabitPlay{habits: map[int]map[DeviceHabit]bool{}, answers: map[int]int{}, requests: map[requestKind]int{}, writes: map[int]int{}}
}

// Set is HabitRig's.
func (p *HabitPlay) Set(n int, habit DeviceHabit, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.habits[n] == nil {
		p.habits[n] = map[DeviceHabit]bool{}
	}
	p.habits[n][habit] = on
}

// Wrote is HabitRig's.
func (p *HabitPlay) Wrote(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writes[n]
}

// Has reports whether a device has a habit.
func (p *HabitPlay) Has(n int, habit DeviceHabit) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.habits[n][habit]
}

// PlayedRequest is how one request is treated.
type PlayedRequest struct {
	Ignored  bool          // it has no effect, and no answer
	Stranger bool          // somebody else answers it
	Busy     bool          // the answer is that the device is busy
	Lost     bool          // it has its effect, and no answer
	Closes   bool          // the connection ends after the answer
	Late     bool          // what it writes is read a second later: see ReadLater
	Delay    time.Duration // of the answer
}

// ReadLater is how long a device with HabitOldValue tells the value before.
const ReadLater = time.Second

// Request says how a request to a device is treated. first says that it reads the device's first property, write that it writes.
func (p *HabitPlay) Request(n int, first, write bool) PlayedRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	has := p.habits[n]
	kind := requestKind{n, first, write}
	p.requests[kind]++
	p.answers[n]++
	r := PlayedRequest{
		Ignored:  has[HabitDead] || has[HabitSilentProperty] && first,
		Stranger: has[HabitStranger],
		Busy:     has[HabitBusy] && p.requests[kind]%2 == 0,
		Lost:     has[HabitLosesAnswers] && p.answers[n]%2 == 0 || has[HabitLosesWrites] && write,
		Closes:   has[HabitClosesConnection],
		Late:     has[HabitOldValue] && write,
	}
	if has[HabitSlow] {
		r.Delay = 300 * time.Millisecond
	}
	if write && !r.Ignored && !r.Stranger && !r.Busy {
		p.writes[n]++
	}
	return r
}
