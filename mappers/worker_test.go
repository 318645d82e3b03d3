// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// slowDriver's devices share a bus, and each takes its time to answer.
type slowDriver struct {
	*toyDriver
	takes map[string]time.Duration

	mu    sync.Mutex
	reads []string // devices, in order
}

type slowToy struct {
	*toyDevice
	d    *slowDriver
	name string
}

func (*slowDriver) Bus(Device) string { return "bus" }

func (d *slowDriver) Open(ctx context.Context, dev Device) (Session, error) {
	s, err := d.toyDriver.Open(ctx, dev)
	if err != nil {
		return nil, err
	}
	return &slowToy{s.(*toyDevice), d, dev.Name}, nil
}

func (s *slowToy) ReadBatch(ctx context.Context, properties []string) (map[string]Reading, error) {
	select {
	case <-time.After(s.d.takes[s.name]): // the device's time
	case <-ctx.Done():
	}
	s.d.mu.Lock()
	s.d.reads = append(s.d.reads, s.name)
	s.d.mu.Unlock()
	got := map[string]Reading{}
	for _, name := range properties {
		v, err := s.Read(ctx, name)
		got[name] = Reading{Value: v, Err: err}
	}
	return got, nil
}

// TestAQuickDeviceIsReadBetweenSlowOnes, however many of them share its bus.
func TestAQuickDeviceIsReadBetweenSlowOnes(t *testing.T) {
	n := newNode(t)
	names := []string{"slow1", "slow2", "slow3", "zippy"}
	d := &slowDriver{toyDriver: newToys(names...), takes: map[string]time.Duration{"slow1": 60 * time.Millisecond, "slow2": 60 * time.Millisecond, "slow3": 60 * time.Millisecond}}
	for _, name := range names {
		n.attach(name, "toy", nil, toyModel(nil))
	}
	n.run(d, nil)
	var reads []string
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		reads = slices.Clone(d.reads)
		return len(reads) >= 40
	}, testTimeout, pollInterval)
	reads = reads[12:] // by then it is known who is slow
	quick := 0
	for _, name := range reads {
		if name == "zippy" {
			quick++
		}
	}
	require.Greater(t, 2*quick, len(reads)-quick, "served in turn it would be read once for three slow ones: %v", reads) // a busy machine may be slow itself
	for _, name := range names {
		require.Contains(t, reads, name, "nobody starves")
	}
}

// TestAValueThatExpiresDuringTheComparisonIsNotWritten: the driver's read takes time.
func TestAValueThatExpiresDuringTheComparisonIsNotWritten(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	var mu sync.Mutex
	var ahead time.Duration
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return time.Now().Add(ahead)
	}
	lamp := d.toys["lamp"]
	block, stuck := make(chan struct{}), make(chan struct{}, 1)
	lamp.block, lamp.stuck = block, stuck
	until := broker.UserProperty{Key: "validUntil", Value: resource.FormatTime(time.Now().Add(time.Hour))}
	v := n.want("lamp", "level", "5", until) // before the mapper runs: it compares first
	n.run(d, func(o *Options) { o.Now, o.CallTimeout = clock, 10*testTimeout })
	<-stuck
	mu.Lock()
	ahead = 2 * time.Hour
	mu.Unlock()
	lamp.mu.Lock()
	lamp.block = nil
	lamp.mu.Unlock()
	close(block)
	n.refused("lamp", "level", v, Expired)
	require.Empty(t, lamp.log())
}

// roundDriver's devices round, and take their time to calculate.
type roundDriver struct {
	*toyDriver
	asked   chan string
	release chan struct{}
}

type roundToy struct {
	*toyDevice
	d roundDriver
}

func (d roundDriver) Open(ctx context.Context, dev Device) (Session, error) {
	s, err := d.toyDriver.Open(ctx, dev)
	if err != nil {
		return nil, err
	}
	if dev.Name != "lamp" {
		return s, nil
	}
	return roundToy{s.(*toyDevice), d}, nil
}

func (r roundToy) Nearest(property, value string) (string, error) {
	if property != "level" {
		return value, nil
	}
	r.d.asked <- value
	<-r.d.release
	number, err := strconv.Atoi(value)
	if err != nil {
		return "", errors.New("no number")
	}
	return strconv.Itoa(number / 10 * 10), nil
}

// TestADriverThatCalculatesHoldsUpNoOtherDevice: neither its messages nor its values.
func TestADriverThatCalculatesHoldsUpNoOtherDevice(t *testing.T) {
	n := newNode(t)
	d := roundDriver{newToys("lamp", "radio"), make(chan string, 99), make(chan struct{})}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.attach("radio", "toy", nil, toyModel(nil))
	d.toys["lamp"].set("level", "40")
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	v := n.want("lamp", "level", "44")
	require.Equal(t, "44", <-d.asked)
	n.applied("radio", "level", "3", n.want("radio", "level", "3"))
	close(d.release)
	n.applied("lamp", "level", "40", v)
	require.Empty(t, d.toys["lamp"].log(), "it has the nearest value")
}
