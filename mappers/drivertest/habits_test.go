// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/virtual"
	"github.com/edgebus/edgebus/topics/resource"
)

// goodSession is what the sessions of simulated devices can do.
type goodSession interface {
	mappers.BatchReader
	mappers.Grouper
	mappers.Writer
	mappers.Reconnector
	mappers.Session
}

// wrongDriver's sessions are those of simulated devices, with a mistake.
type wrongDriver struct {
	*virtual.Driver
	mistake driverMistake
}

// driverMistake is what a session does in the place of the right one; a nil function is right.
type driverMistake struct {
	read  func(ctx context.Context, s goodSession, properties []string) (map[string]mappers.Reading, error)
	write func(ctx context.Context, s goodSession, property, value string) error
	group bool // all properties are one group
}

type wrongSession struct {
	goodSession
	driverMistake
}

func (d wrongDriver) Open(ctx context.Context, dev mappers.Device) (mappers.Session, error) {
	s, err := d.Driver.Open(ctx, dev)
	if err != nil {
		return nil, err
	}
	return wrongSession{s.(goodSession), d.mistake}, nil
}

func (s wrongSession) ReadBatch(ctx context.Context, properties []string) (map[string]mappers.Reading, error) {
	if s.read == nil {
		return s.goodSession.ReadBatch(ctx, properties)
	}
	return s.read(ctx, s.goodSession, properties)
}

func (s wrongSession) Write(ctx context.Context, property, value string) error {
	if s.write == nil {
		return s.goodSession.Write(ctx, property, value)
	}
	return s.write(ctx, s.goodSession, property, value)
}

func (s wrongSession) Group(properties []string) [][]string {
	if s.group {
		return [][]string{properties}
	}
	return s.goodSession.Group(properties)
}

// failingWith reads, and makes another error of one.
func failingWith(instead func(error) error) driverMistake {
	return driverMistake{read: func(ctx context.Context, s goodSession, properties []string) (map[string]mappers.Reading, error) {
		got, err := s.ReadBatch(ctx, properties)
		if err != nil {
			err = instead(err)
		}
		return got, err
	}}
}

// rowMistakes has one for each row that the row must find.
var rowMistakes = map[DeviceHabit]driverMistake{
	HabitDead: {read: func(ctx context.Context, s goodSession, properties []string) (map[string]mappers.Reading, error) {
		got, err := s.ReadBatch(ctx, properties)
		if err != nil { // what it had before, for ever
			return map[string]mappers.Reading{properties[0]: {Value: "1"}}, nil
		}
		return got, nil
	}},
	HabitStranger:     failingWith(func(err error) error { return mappers.Refuse(mappers.Rejected, "%v", err) }),
	HabitLosesAnswers: failingWith(mappers.SaysOffline),
	HabitClosesConnection: {
		read: failingWith(func(err error) error { return mappers.Refuse(mappers.Unavailable, "%v", err) }).read,
		write: func(ctx context.Context, s goodSession, property, value string) error {
			if err := s.Write(ctx, property, value); err != nil {
				return mappers.Refuse(mappers.Rejected, "%v", err)
			}
			return nil
		},
	},
	HabitBusy: {write: func(context.Context, goodSession, string, string) error {
		return mappers.Refuse(mappers.Rejected, "busy")
	}},
	HabitSilentProperty: {group: true},
	HabitNoValue: {read: func(ctx context.Context, s goodSession, properties []string) (map[string]mappers.Reading, error) {
		got, err := s.ReadBatch(ctx, properties)
		for name, r := range got {
			if r.Value == "none" {
				got[name] = mappers.Reading{Value: "0"}
			}
		}
		return got, err
	}},
	HabitSlow: {read: func(ctx context.Context, s goodSession, properties []string) (got map[string]mappers.Reading, err error) {
		for range 10 { // and the time that it is given is nothing to it
			got, err = s.ReadBatch(context.WithoutCancel(ctx), properties)
		}
		return got, err
	}},
	HabitOldValue: {write: func(ctx context.Context, s goodSession, property, value string) error {
		err := s.Write(ctx, property, value)
		if got, _ := s.ReadBatch(ctx, []string{property}); got[property].Value != value {
			return s.Write(ctx, property, value)
		}
		return err
	}},
	HabitLosesWrites: {write: func(ctx context.Context, s goodSession, property, value string) error {
		if s.Write(ctx, property, value) != nil {
			return s.Write(ctx, property, value)
		}
		return nil
	}},
	HabitComesBack: failingWith(func(err error) error {
		return mappers.BadConfig("spec.protocol.config.address", "nobody there: %v", err)
	}),
}

// TestAWrongDriverFailsItsRow: a row that passes whatever a driver does says nothing.
func TestAWrongDriverFailsItsRow(t *testing.T) {
	for _, row := range habitRows {
		t.Run(string(row.habit), func(t *testing.T) {
			wrong, ok := rowMistakes[row.habit]
			require.True(t, ok, "no driver is known that fails this row")
			times := wallTimes
			times.patience, times.stale = time.Second, time.Second
			synctest.Test(t, func(t *testing.T) {
				err := row.run(simulatedRig(func(d *virtual.Driver) mappers.Driver { return wrongDriver{d, wrong} }), times)
				require.Error(t, err)
				t.Log(err)
			})
		})
	}
}

// In virtual time a machine that is busy has no part in it: what a device with a habit that is read once a second lets users see is seen in time,
// and each time.
func TestWhatIsSaidOfEachHabitIsSaidInTime(t *testing.T) {
	const timeOut = 150 * time.Millisecond // of a simulated device that doesn't answer
	// Two cycles, and what the request of each takes, which is made again on a fresh connection.
	twoCycles := habitTimes{cycle: time.Second, offlineAfter: 5 * time.Second, patience: 8 * time.Second, stale: 2*time.Second + 4*timeOut}
	for _, row := range habitRows {
		t.Run(string(row.habit), func(t *testing.T) {
			for range 10 { // each time at another part of the cycle
				synctest.Test(t, func(t *testing.T) { require.NoError(t, row.run(rightRig(), twoCycles)) })
			}
		})
	}
	t.Run("expires", func(t *testing.T) {
		times := twoCycles
		times.expireAfter, times.stale = 1500*time.Millisecond, 1500*time.Millisecond+timeOut // a request may be under way
		row := habitRow{HabitSilentProperty, 2, func(x *habitTrial) error { return x.hasNoValue(HabitSilentProperty, resource.ValueStale) }}
		for range 10 {
			synctest.Test(t, func(t *testing.T) { require.NoError(t, row.run(rightRig(), times)) })
		}
	})
}

func rightRig() HabitRig {
	return simulatedRig(func(d *virtual.Driver) mappers.Driver { return d })
}

func simulatedRig(driver func(*virtual.Driver) mappers.Driver) HabitRig {
	habits := new(virtual.Habits)
	low, high := 0.0, 100.0
	name := func(n int) string { return "device-" + strconv.Itoa(n) }
	properties := []mappers.Property{
		{Name: "temperature", Type: mappers.Float, Visited: true, NotAvailable: []string{"none"}, Config: map[string]string{"generator": "constant", "value": "21.5"}},
		{Name: "level", Type: mappers.Int, Writable: true, Visited: true, Minimum: &low, Maximum: &high},
	}
	return HabitRig{
		Driver: driver(virtual.New(virtual.Options{Habits: habits})),
		Device: func(n int) mappers.Device { return mappers.Device{Name: name(n), Properties: slices.Clone(properties)} },
		Set:    func(n int, habit DeviceHabit, on bool) { habits.Set(name(n), string(habit), on) },
		Wrote:  func(n int) int { return habits.Wrote(name(n)) },
	}
}
