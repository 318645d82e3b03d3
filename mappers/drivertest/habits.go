// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/topics/resource"
)

// DeviceHabit is something that real devices do, and that a driver must bear.
type DeviceHabit string

// The habits that have a row in the suite.
const (
	HabitDead             DeviceHabit = "dead"              // answers nothing
	HabitLosesAnswers     DeviceHabit = "loses answers"     // every second answer gets lost
	HabitClosesConnection DeviceHabit = "closes connection" // ends the connection after each answer
	HabitSilentProperty   DeviceHabit = "silent property"   // never answers the first property
	HabitBusy             DeviceHabit = "busy"              // says that it is busy to every second request
	HabitStranger         DeviceHabit = "stranger"          // somebody else answers in its place, such as a gateway that doesn't reach it
	HabitSlow             DeviceHabit = "slow"              // takes 300 ms for each answer
	HabitOldValue         DeviceHabit = "old value"         // tells the old value for a second after a write
	HabitLosesWrites      DeviceHabit = "loses writes"      // takes what is written, and the answer gets lost
	HabitNoValue          DeviceHabit = "no value"          // has no value for the first property, and says so with a word of its own
	HabitComesBack        DeviceHabit = "comes back"        // is dead, and comes back together with all others: it is played as HabitDead
)

// HabitRig is a simulator of devices of the driver's protocol that has habits, fresh for each test.
type HabitRig struct {
	Driver mappers.Driver
	// Device is the n-th device. Its first property can be read, and is in no request together with the others; a property "level" is a whole
	// number that can be read and written, from 0 to 100. The devices share a connection, if those of the protocol do.
	Device func(n int) mappers.Device
	// Set switches a habit of the n-th device on or off.
	Set func(n int, habit DeviceHabit, on bool)
	// Wrote is how often anything was written to the n-th device.
	Wrote func(n int) int
	// Missing are the habits that devices of the protocol can't have, each with the reason.
	Missing map[DeviceHabit]string
}

// habitRow is what must be seen of a device with a habit.
type habitRow struct {
	habit   DeviceHabit
	devices int
	try     func(*habitTrial) error
}

// habitRows are the rows of the suite.
var habitRows = []habitRow{
	{HabitDead, 2, func(x *habitTrial) error { return x.isOffline(HabitDead) }},
	{HabitStranger, 2, func(x *habitTrial) error { return x.isOffline(HabitStranger) }},
	{HabitLosesAnswers, 2, func(x *habitTrial) error { return x.isBorne(HabitLosesAnswers) }},
	{HabitClosesConnection, 2, func(x *habitTrial) error { return x.isBorne(HabitClosesConnection) }},
	{HabitBusy, 2, func(x *habitTrial) error { return x.isBorne(HabitBusy) }},
	{HabitSilentProperty, 2, func(x *habitTrial) error { return x.hasNoValue(HabitSilentProperty, resource.ValueUnread) }},
	{HabitNoValue, 2, func(x *habitTrial) error { return x.hasNoValue(HabitNoValue, resource.ValueUnknown) }},
	{HabitSlow, 2, (*habitTrial).isSlow},
	{HabitOldValue, 1, func(x *habitTrial) error { return x.isWrittenOnce(HabitOldValue) }},
	{HabitLosesWrites, 1, func(x *habitTrial) error { return x.isWrittenOnce(HabitLosesWrites) }},
	{HabitComesBack, 20, (*habitTrial).comesBack},
}

// RunHabits runs the suite of habits. newRig is called for every row of it.
func RunHabits(t *testing.T, newRig func(t *testing.T) HabitRig) {
	for _, row := range habitRows {
		t.Run(string(row.habit), func(t *testing.T) {
			t.Parallel()
			rig := newRig(t)
			if why, missing := rig.Missing[row.habit]; missing {
				requireTrue(t, why != "", "say why devices can't have the habit %s", row.habit)
				t.Skip(why)
			}
			noError(t, row.run(rig, wallTimes), string(row.habit))
		})
	}
}

// habitTimes are the times of the suite.
type habitTimes struct {
	cycle, offlineAfter time.Duration // of the devices
	patience            time.Duration // what is said must be said, or taken back, so soon after its cause
	stale               time.Duration // so soon it must be said that a property has no value
	expireAfter         time.Duration // of the first property; 0: its values don't expire
}

// wallTimes are those of devices that answer over real connections, on a busy machine.
var wallTimes = habitTimes{cycle: 50 * time.Millisecond, offlineAfter: 600 * time.Millisecond, patience: 15 * time.Second, stale: 5 * time.Second}

// habitWhile is how long a habit is had of which nothing is said.
const habitWhile = 1500 * time.Millisecond

func (row habitRow) run(rig HabitRig, times habitTimes) (err error) {
	b, err := mappers.NewDriverBench(mappers.Options{
		Name: "habits", Collect: times.cycle, CallTimeout: 2 * time.Second, ProbeTimeout: 100 * time.Millisecond,
		OfflineAfter: times.offlineAfter, ConfirmWithin: 3 * time.Second,
		Backoff: client.Backoff{Min: 50 * time.Millisecond, Max: 200 * time.Millisecond},
	}, rig.Driver)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	x := &habitTrial{HabitRig: rig, habitTimes: times, bench: b}
	for n := range row.devices {
		d := rig.Device(n)
		d.Properties[0].ExpireAfter = times.expireAfter
		x.names = append(x.names, d.Name)
		b.Attach(d)
	}
	x.first = rig.Device(0).Properties[0].Name
	for _, name := range x.names {
		for _, topic := range []string{"state", "reported/" + x.first, "reported/level"} {
			if err := x.await(name+" has "+topic, func() bool { return len(b.Said(name, topic)) > 0 }); err != nil {
				return err
			}
		}
	}
	return errors.Join(row.try(x), x.saysNoWrongLevel())
}

// habitTrial is a device with a habit, and its neighbours.
type habitTrial struct {
	HabitRig
	habitTimes
	bench *mappers.DriverBench
	names []string
	first string // the first property
	level int
	set   map[int][]string // which levels were set, by device: each another one
}

func (x *habitTrial) await(what string, ok func() bool) error {
	return x.awaitWithin(x.patience, what, ok)
}

// awaitWithin waits for a condition. While a busy machine lets the test stand it lets the device and its driver stand as well: that time hardly counts.
func (x *habitTrial) awaitWithin(limit time.Duration, what string, ok func() bool) error {
	const tick = 5 * time.Millisecond
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	last, waited := time.Now(), time.Duration(0)
	for !ok() {
		if waited >= limit {
			return fmt.Errorf("not within %s: %s", limit, what)
		}
		<-ticks.C
		now := time.Now()
		waited, last = waited+min(now.Sub(last), 4*tick), now
	}
	return nil
}

func (x *habitTrial) last(n int, topic string) string {
	said := x.bench.Said(x.names[n], topic)
	if len(said) == 0 {
		return ""
	}
	return said[len(said)-1]
}

// states is an error unless the states of the n-th device that were published are these.
func (x *habitTrial) states(n int, want ...string) error {
	if said := x.bench.Said(x.names[n], "state"); !slices.Equal(said, want) {
		return fmt.Errorf("the states of %s are %v, and must be %v", x.names[n], said, want)
	}
	return nil
}

// canBeSet is an error unless a value is written to the n-th device and reported.
func (x *habitTrial) canBeSet(n int) error {
	x.level = x.level%100 + 1
	value := strconv.Itoa(x.level)
	if x.set == nil {
		x.set = map[int][]string{}
	}
	x.set[n] = append(x.set[n], value)
	x.bench.Want(x.names[n], "level", value)
	return x.await("the level of "+x.names[n]+" is "+value, func() bool { return x.last(n, "reported/level") == value })
}

// saysNoWrongLevel is an error if a level was reported that no device was set to, or again one that was set before another.
func (x *habitTrial) saysNoWrongLevel() error {
	for n, name := range x.names {
		said, left, last := x.bench.Said(name, "reported/level"), x.set[n], ""
		for _, value := range said[min(1, len(said)):] { // the first is what it was
			at := slices.Index(left, value)
			switch {
			case at >= 0:
				left, last = left[at+1:], value
			case value != "" && value != last && value != said[0]: // none, or the same again
				return fmt.Errorf("%s was set to %v, and the levels that were reported are %v", name, x.set[n], said)
			}
		}
	}
	return nil
}

// hasProblem reports whether the last problem that was published on a topic has the code.
func (x *habitTrial) hasProblem(n int, topic, code string) bool {
	var p resource.Problem
	return json.Unmarshal([]byte(x.last(n, topic)), &p) == nil && p.Code == code
}

// isOffline tries a device that doesn't answer: it is offline once, with the reason, and online again when it answers. Its neighbour is unharmed.
func (x *habitTrial) isOffline(habit DeviceHabit) error {
	x.Set(0, habit, true)
	err := errors.Join(
		x.await("it is offline", func() bool { return x.last(0, "state") == resource.Offline }),
		x.await("it says why", func() bool { return x.hasProblem(0, "problem", resource.Unreachable) }),
		x.canBeSet(1),
	)
	x.Set(0, habit, false)
	return errors.Join(err,
		x.await("it is online again", func() bool { return x.last(0, "state") == resource.Online }),
		x.states(0, resource.Online, resource.Offline, resource.Online),
		x.canBeSet(0),
		x.states(1, resource.Online),
	)
}

// isBorne tries a habit of which nobody must notice anything.
func (x *habitTrial) isBorne(habit DeviceHabit) error {
	x.Set(0, habit, true)
	var err error
	for end := time.Now().Add(habitWhile); err == nil && time.Now().Before(end); {
		err = errors.Join(x.canBeSet(0), x.canBeSet(1))
	}
	x.Set(0, habit, false)
	err = errors.Join(err, x.canBeSet(0))
	for n := range 2 {
		err = errors.Join(err, x.states(n, resource.Online))
		for _, topic := range x.bench.Topics(x.names[n]) {
			if !strings.HasPrefix(topic, "problem") && !strings.HasPrefix(topic, "refused") {
				continue
			}
			for _, said := range x.bench.Said(x.names[n], topic) {
				var p resource.Problem
				if said != "" && (json.Unmarshal([]byte(said), &p) != nil || !p.Online) { // what was learnt may be told
					err = errors.Join(err, fmt.Errorf("%s: %s says %s", x.names[n], topic, said))
				}
			}
		}
	}
	return err
}

// hasNoValue tries a device whose first property has no value: the problem says so once, and the others go on.
func (x *habitTrial) hasNoValue(habit DeviceHabit, code string) error {
	topic := "problem/" + x.first
	x.Set(0, habit, true)
	err := errors.Join(
		x.awaitWithin(x.stale, "the problem of its first property is "+code, func() bool { return x.hasProblem(0, topic, code) }),
		x.canBeSet(0),
		x.canBeSet(1),
	)
	said := len(x.bench.Said(x.names[0], "reported/"+x.first))
	x.Set(0, habit, false)
	err = errors.Join(err,
		x.await("its first property has a value again", func() bool { return len(x.bench.Said(x.names[0], "reported/"+x.first)) > said }),
		x.states(0, resource.Online), x.states(1, resource.Online))
	if n := len(x.bench.Said(x.names[0], topic)); n > 1 {
		err = errors.Join(err, fmt.Errorf("the problem of the first property was published %d times", n))
	}
	return err
}

// isSlow tries a device that is slow: its neighbour is not.
func (x *habitTrial) isSlow() error {
	x.Set(0, HabitSlow, true)
	var err error
	for range 4 {
		start := time.Now()
		err = errors.Join(err, x.canBeSet(1))
		if took := time.Since(start); took > 2*time.Second {
			err = errors.Join(err, fmt.Errorf("its neighbour was written after %s", took.Round(time.Millisecond)))
		}
	}
	return errors.Join(err, x.canBeSet(0), x.states(0, resource.Online), x.states(1, resource.Online))
}

// isWrittenOnce tries a device of which it takes a while to know that it has a value.
func (x *habitTrial) isWrittenOnce(habit DeviceHabit) error {
	before := x.Wrote(0)
	x.Set(0, habit, true)
	err := x.canBeSet(0)
	if n := x.Wrote(0) - before; n != 1 {
		err = errors.Join(err, fmt.Errorf("it was written %d times", n))
	}
	return errors.Join(err, x.states(0, resource.Online))
}

// comesBack tries many devices that are dead together.
func (x *habitTrial) comesBack() error {
	for n := range x.names {
		x.Set(n, HabitDead, true)
	}
	all := func(state string) func() bool {
		return func() bool {
			for n := range x.names {
				if x.last(n, "state") != state {
					return false
				}
			}
			return true
		}
	}
	// Devices that share a connection are found dead one after the other.
	err := x.awaitWithin(6*x.patience, "all are offline", all(resource.Offline))
	for n := range x.names {
		x.Set(n, HabitDead, false)
	}
	err = errors.Join(err, x.await("all are online again", all(resource.Online)))
	for n := range x.names {
		err = errors.Join(err, x.states(n, resource.Online, resource.Offline, resource.Online))
	}
	return err
}
