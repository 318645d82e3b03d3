// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// oddDriver's devices read each property in a request of its own, and have the habits of the test.
type oddDriver struct {
	*toyDriver
	mu   sync.Mutex
	read func(ctx context.Context, device, property string) error // before the toy reads; nil: it reads
	wait func(device, property, value string) error               // after the toy was written
	tell func(Device)
	seen []Device

	reconnects atomic.Int32
}

type oddToy struct {
	*toyDevice
	d    *oddDriver
	name string
}

func newOdd(names ...string) *oddDriver { return &oddDriver{toyDriver: newToys(names...)} }

func (d *oddDriver) Bus(Device) string { return "bus" }

func (d *oddDriver) Open(ctx context.Context, dev Device) (Session, error) {
	s, err := d.toyDriver.Open(ctx, dev)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen = append(d.seen, dev)
	if d.tell != nil {
		d.tell(dev)
	}
	return &oddToy{s.(*toyDevice), d, dev.Name}, nil
}

func (d *oddDriver) reading(f func(ctx context.Context, device, property string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read = f
}

func (d *oddDriver) writing(f func(device, property, value string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wait = f
}

func (*oddToy) Group(properties []string) [][]string {
	return slices.Collect(slices.Chunk(properties, 1))
}

func (t *oddToy) Reconnect() { t.d.reconnects.Add(1) }

func (t *oddToy) ReadBatch(ctx context.Context, properties []string) (map[string]Reading, error) {
	if len(properties) != 1 {
		return nil, fmt.Errorf("%v in one request", properties)
	}
	t.d.mu.Lock()
	f := t.d.read
	t.d.mu.Unlock()
	if f != nil {
		if err := f(ctx, t.name, properties[0]); err != nil {
			return nil, err
		}
	}
	v, err := t.Read(ctx, properties[0])
	return map[string]Reading{properties[0]: {Value: v}}, err
}

func (t *oddToy) Write(ctx context.Context, property, value string) error {
	t.d.mu.Lock()
	f := t.d.wait
	t.d.mu.Unlock()
	if f == nil {
		return t.toyDevice.Write(ctx, property, value)
	}
	return f(t.name, property, value)
}

var errSilence = errors.New("no answer")

func problemOf(n *fakeNode, key string) (p resource.Problem) {
	text, _ := n.at(key)
	if text != "" {
		p, _ = resource.ParseProblem([]byte(text))
	}
	return p
}

func (n *fakeNode) hasProblem(key, code string) {
	n.t.Helper()
	require.Eventually(n.t, func() bool { return problemOf(n, key).Code == code }, testTimeout, pollInterval, "%s did not become %q", key, code)
}

func TestAPropertyThatIsNeverAnsweredTakesNoOtherWithIt(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	d.read = func(_ context.Context, _, property string) error {
		if property == "level" {
			return errSilence
		}
		return nil
	}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/reported/temp", "20")
	n.eventually("devices/lamp/reported/power", "OFF")
	n.hasProblem("devices/lamp/problem/level", resource.ValueUnread)
	d.toys["lamp"].set("temp", "21")
	n.eventually("devices/lamp/reported/temp", "21")
	require.Equal(t, []string{"online"}, n.published("devices/lamp/state"))
	require.Len(t, n.published("devices/lamp/problem/level"), 1, "it is said once")
	d.reading(nil)
	n.eventually("devices/lamp/reported/level", "0")
	require.Empty(t, n.published("devices/lamp/problem"))
}

func TestARequestIsMadeOnceMoreOnAFreshConnectionBeforeAnythingIsSaid(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	asked := map[string]int{} // the bus' goroutine only
	d.read = func(_ context.Context, _, property string) error {
		if asked[property]++; asked[property]%2 == 1 { // every first attempt is lost
			return errSilence
		}
		return nil
	}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	for _, temp := range []string{"21", "22", "23"} {
		d.toys["lamp"].set("temp", temp)
		n.eventually("devices/lamp/reported/temp", temp)
	}
	require.GreaterOrEqual(t, d.reconnects.Load(), int32(3))
	require.Equal(t, []string{"online"}, n.published("devices/lamp/state"))
	require.Empty(t, n.published("devices/lamp/problem"))
	for _, property := range []string{"power", "level", "temp"} {
		require.Empty(t, n.published("devices/lamp/problem/"+property))
	}
	require.Equal(t, 1, d.opened, "the session stays open")
}

func TestADeviceIsOfflineOnceNothingHasAnsweredForAWhile(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	const while = 400 * time.Millisecond
	n.attach("lamp", "toy", map[string]string{offlineAfterKey: while.String()}, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	died := time.Now()
	d.toys["lamp"].die(errSilence)
	n.eventually("devices/lamp/state", "offline")
	require.GreaterOrEqual(t, time.Since(died), while)
	n.hasProblem("devices/lamp/problem", resource.Unreachable)
	d.toys["lamp"].die(nil)
	n.eventually("devices/lamp/state", "online")
	require.Equal(t, []string{"online", "offline", "online"}, n.published("devices/lamp/state"))
	d.mu.Lock()
	defer d.mu.Unlock()
	require.Equal(t, while, d.seen[0].OfflineAfter)
	require.NotContains(t, d.seen[0].Config, offlineAfterKey, "it is the SDK's")
}

func TestAnOfflineAfterThatCanNotBeRead(t *testing.T) {
	n := newNode(t)
	n.attach("lamp", "toy", map[string]string{offlineAfterKey: "soon"}, toyModel(nil))
	n.run(newToys("lamp"), nil)
	n.eventually("devices/lamp/problem", `{"code":"BadConfig","message":"spec.protocol.config.offlineAfter: \"soon\" is no duration above 0, such as 30s"}`)
}

func TestADeviceThatSaysThatItIsOfflineIsSoAtOnce(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	n.attach("lamp", "toy", map[string]string{offlineAfterKey: "1h"}, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	d.toys["lamp"].die(SaysOffline(errors.New("its bridge says so")))
	n.eventually("devices/lamp/state", "offline")
	d.toys["lamp"].die(nil)
	n.eventually("devices/lamp/state", "online")
	require.Zero(t, d.reconnects.Load(), "that says nothing about the connection")
	d.mu.Lock()
	defer d.mu.Unlock()
	require.Len(t, d.seen, 1, "it stays open")
}

func TestABusyDeviceIsAskedAgainInTheSameCycle(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	var asked atomic.Int32
	d.read = func(_ context.Context, _, property string) error {
		if property == "temp" && asked.Add(1) < 3 {
			return Busy(errors.New("busy"))
		}
		return nil
	}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, func(o *Options) { o.Collect = time.Hour })
	n.eventually("devices/lamp/reported/temp", "20")
	require.Empty(t, n.published("devices/lamp/problem/temp"))
	require.Zero(t, d.reconnects.Load(), "it has answered")
}

func TestADeviceThatIsBusyForEverAfterAFreshConnectionHasAProblem(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	var asked atomic.Int32
	d.read = func(_ context.Context, _, property string) error {
		switch {
		case property != "temp":
			return nil
		case asked.Add(1) == 1:
			return errSilence
		}
		return Busy(errors.New("busy"))
	}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.hasProblem("devices/lamp/problem/temp", resource.ValueUnread)
	require.Equal(t, []string{"online"}, n.published("devices/lamp/state"))
}

func TestAStrangersAnswerIsNoSignOfLife(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp", "radio")
	d.read = func(_ context.Context, device, _ string) error {
		if device == "lamp" {
			return NotTheDevice(errors.New("the gateway doesn't reach it"))
		}
		return nil
	}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.attach("radio", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/radio/state", "online")
	n.eventually("devices/lamp/state", "offline")
	require.Contains(t, problemOf(n, "devices/lamp/problem").Message, "gateway")
	require.Zero(t, d.reconnects.Load(), "the connection is sound")
	d.reading(nil)
	n.eventually("devices/lamp/state", "online")
	require.Equal(t, []string{"online"}, n.published("devices/radio/state"))
}

func TestWhatCanNotBeReadBackIsNeverWrittenAgain(t *testing.T) {
	n := newNode(t)
	d := muteDriver{newToys("lamp")}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	lamp := d.toys["lamp"]
	lamp.mu.Lock()
	lamp.wfail = errSilence
	lamp.mu.Unlock()
	n.refused("lamp", "level", n.want("lamp", "level", "5"), Lost)
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
	require.Equal(t, []string{"level=5", "power=ON"}, lamp.log())
}

func TestAWriteThatWasNotSentIsMadeWhenTheDeviceIsBack(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	var tried atomic.Int32
	d.writing(func(string, string, string) error {
		tried.Add(1)
		return NotSent(errors.New("no route"))
	})
	v := n.want("lamp", "level", "5")
	require.Eventually(t, func() bool { return tried.Load() > 1 }, testTimeout, pollInterval)
	d.writing(nil)
	n.applied("lamp", "level", "5", v)
	require.Equal(t, []string{"level=5"}, d.toys["lamp"].log())
}

// A device that ends the connection after each answer: between a write that finds none and its next turn a reading would use up the fresh one.
func TestAWriteTakesTheFreshConnectionThatItsDeviceEndsAfterEachAnswer(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	var ended atomic.Int32 // the connection that was used, of which Reconnect makes the next
	ended.Store(-1)
	connected := func() error {
		if current := d.reconnects.Load(); ended.Swap(current) == current {
			return NotSent(io.EOF)
		}
		return nil
	}
	d.read = func(context.Context, string, string) error { return connected() }
	d.wait = func(device, property, value string) error {
		if err := connected(); err != nil {
			return err
		}
		return d.toys[device].Write(t.Context(), property, value)
	}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, func(o *Options) { o.Backoff = client.Backoff{Min: time.Hour, Max: time.Hour} })
	n.eventually("devices/lamp/reported/level", "0")
	for _, value := range []string{"5", "6", "7"} {
		n.applied("lamp", "level", value, n.want("lamp", "level", value))
	}
	require.Equal(t, []string{"level=5", "level=6", "level=7"}, d.toys["lamp"].log())
	require.Equal(t, []string{"online"}, n.published("devices/lamp/state"))
	require.Empty(t, n.published("devices/lamp/problem/temp"))
}

func TestADeviceThatTellsTheOldValueForAWhileIsWrittenOnce(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	lamp := d.toys["lamp"]
	var writes atomic.Int32
	d.wait = func(_, property, value string) error {
		writes.Add(1)
		time.AfterFunc(200*time.Millisecond, func() { lamp.set(property, value) }) // the device takes its time
		return nil
	}
	n.run(d, func(o *Options) { o.ConfirmWithin = testTimeout })
	n.eventually("devices/lamp/reported/level", "0")
	n.applied("lamp", "level", "50", n.want("lamp", "level", "50"))
	require.EqualValues(t, 1, writes.Load())
	require.Equal(t, []string{"0", "50"}, n.published("devices/lamp/reported/level"))
}

func TestAValueThatTheDeviceDidNotTakeIsReportedAfterConfirmWithin(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	var writes atomic.Int32
	d.wait = func(string, string, string) error {
		writes.Add(1)
		d.toys["lamp"].set("level", "40") // it goes no further
		return nil
	}
	n.run(d, nil)
	n.applied("lamp", "level", "40", n.want("lamp", "level", "50"))
	require.EqualValues(t, 1, writes.Load())
}

func TestAnUnconfirmedWriteHoldsUpNothing(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp", "radio")
	n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) {
		m.Spec.PropertyVisitors[0].Visitors[1].ConfirmWithin = time.Hour.Milliseconds()
	}))
	n.attach("radio", "toy", nil, toyModel(nil))
	var writes atomic.Int32
	d.wait = func(device, property, value string) error {
		if device == "lamp" && property == "level" {
			writes.Add(1)
			return ErrUnconfirmed
		}
		d.toys[device].set(property, value)
		return nil
	}
	n.run(d, nil)
	level := n.want("lamp", "level", "50")
	require.Eventually(t, func() bool { return writes.Load() == 1 }, testTimeout, pollInterval)
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
	n.applied("radio", "level", "3", n.want("radio", "level", "3"))
	d.toys["lamp"].set("temp", "25")
	n.eventually("devices/lamp/reported/temp", "25")
	d.toys["lamp"].set("level", "50") // minutes later
	n.applied("lamp", "level", "50", level)
	require.EqualValues(t, 1, writes.Load())
}

func TestANewerValueIsWrittenAlthoughTheDeviceStillTellsThatOne(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	var mu sync.Mutex
	var writes []string
	d.wait = func(_, _, value string) error {
		mu.Lock()
		defer mu.Unlock()
		writes = append(writes, value)
		return nil // the device goes on saying OFF
	}
	n.run(d, func(o *Options) { o.ConfirmWithin = time.Hour })
	n.eventually("devices/lamp/reported/power", "OFF")
	written := func(want ...string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(want, writes)
		}
	}
	n.want("lamp", "power", "ON")
	require.Eventually(t, written("ON"), testTimeout, pollInterval)
	n.want("lamp", "power", "OFF")
	require.Eventually(t, written("ON", "OFF"), testTimeout, pollInterval, "what it says may be from before ON")
}

func TestAValueThatIsNotSaidAgainIsStale(t *testing.T) {
	n := newNode(t)
	d := pushDriver{muteDriver{newToys("lamp")}, make(chan string)}
	n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) { m.Spec.PropertyVisitors[0].Visitors[2].ExpireAfter = 150 }))
	n.run(d, nil)
	d.changes <- "30"
	n.eventually("devices/lamp/reported/temp", "30")
	n.hasProblem("devices/lamp/problem/temp", resource.ValueStale)
	require.NotEmpty(t, problemOf(n, "devices/lamp/problem/temp").Since)
	d.changes <- "30"
	require.Eventually(t, func() bool { return len(n.published("devices/lamp/reported/temp")) == 2 }, testTimeout, pollInterval, "the same value is news then")
	require.Equal(t, []string{"online"}, n.published("devices/lamp/state"))
}

func TestTheValuesOfADeadDeviceExpire(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) { m.Spec.PropertyVisitors[0].Visitors[2].ExpireAfter = 150 }))
	n.run(d, nil)
	n.eventually("devices/lamp/reported/temp", "20")
	d.toys["lamp"].die(errSilence)
	n.eventually("devices/lamp/state", "offline")
	n.hasProblem("devices/lamp/problem/temp", resource.ValueStale)
	d.toys["lamp"].die(nil)
	require.Eventually(t, func() bool { return len(n.published("devices/lamp/reported/temp")) == 2 }, testTimeout, pollInterval)
}

// cachedToy has its values from messages of the device: reading them doesn't make them younger.
type cachedDriver struct {
	*toyDriver
	said time.Time
}

type cachedToy struct {
	*toyDevice
	said time.Time
}

func (d cachedDriver) Open(ctx context.Context, dev Device) (Session, error) {
	s, err := d.toyDriver.Open(ctx, dev)
	if err != nil {
		return nil, err
	}
	return cachedToy{s.(*toyDevice), d.said}, nil
}

func (c cachedToy) ReadBatch(context.Context, []string) (map[string]Reading, error) {
	return map[string]Reading{"temp": {Value: "20", At: c.said}}, nil
}

func TestReadingAnOldMessageAgainDoesNotRefreshTheValue(t *testing.T) {
	n := newNode(t)
	d := cachedDriver{newToys("lamp"), time.Now()}
	n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) { m.Spec.PropertyVisitors[0].Visitors[2].ExpireAfter = 300 }))
	n.run(d, nil)
	n.eventually("devices/lamp/reported/temp", "20")
	n.hasProblem("devices/lamp/problem/temp", resource.ValueStale)
	require.Len(t, n.published("devices/lamp/reported/temp"), 1)
}

func TestACycleThatIsNotKeptIsTold(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	var slow atomic.Bool
	slow.Store(true)
	d.read = func(context.Context, string, string) error {
		if slow.Load() {
			<-time.After(30 * time.Millisecond) // the device's time
		}
		return nil
	}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.hasProblem("devices/lamp/problem", reasonCycle)
	p := problemOf(n, "devices/lamp/problem")
	require.True(t, p.Online)
	require.Contains(t, p.Message, "is to be read every 20ms")
	slow.Store(false)
	n.eventually("devices/lamp/problem", "")
	n.eventually("devices/lamp/state", "online")
}

func TestWhatADriverTellsIsShownAndEnds(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	told := make(chan Device, 1)
	d.tell = func(dev Device) {
		dev.Tell("MaxRegisters", "reads at most 40 registers at once: set maxRegisters")
		told <- dev
	}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/problem", `{"code":"MaxRegisters","message":"reads at most 40 registers at once: set maxRegisters","online":true}`)
	dev := <-told
	dev.Tell("MaxRegisters", "reads at most 40 registers at once: set maxRegisters")
	dev.Tell("MaxRegisters", "")
	n.eventually("devices/lamp/problem", "")
	require.Len(t, n.published("devices/lamp/problem"), 2, "what was told already is no news")
	require.Equal(t, []string{"online"}, n.published("devices/lamp/state"))
}

// TestADeadDeviceDelaysItsNeighboursByBriefProbesOnly: its driver waits as long as it is let.
func TestADeadDeviceDelaysItsNeighboursByBriefProbesOnly(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp", "radio")
	var probes []time.Duration
	var mu sync.Mutex
	d.read = func(ctx context.Context, device, _ string) error {
		if device != "lamp" {
			return nil
		}
		start := time.Now()
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond): // the time-out of the protocol
		}
		mu.Lock()
		defer mu.Unlock()
		probes = append(probes, time.Since(start))
		return errSilence
	}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.attach("radio", "toy", nil, toyModel(nil))
	n.run(d, func(o *Options) { o.ProbeTimeout = 10 * time.Millisecond })
	n.eventually("devices/radio/state", "online")
	n.eventually("devices/lamp/state", "offline")
	var brief int
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		brief = 0
		for _, took := range probes {
			if took < 250*time.Millisecond {
				brief++
			}
		}
		return len(probes) >= 15
	}, testTimeout, pollInterval)
	require.GreaterOrEqual(t, brief, 8, "%v", probes)
	require.Less(t, brief, len(probes), "one that has become slow is found")
	d.toys["radio"].set("temp", "33")
	n.eventually("devices/radio/reported/temp", "33")
	require.Equal(t, []string{"online"}, n.published("devices/radio/state"))
}

func TestAnAnswerThatIsNotWaitedForIsSaidWithItsTime(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp", "radio")
	d.read = func(ctx context.Context, device, _ string) error {
		if device == "lamp" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.attach("radio", "toy", nil, toyModel(nil))
	n.run(d, func(o *Options) { o.ProbeTimeout = 10 * time.Millisecond })
	n.eventually("devices/lamp/state", "offline")
	require.Contains(t, problemOf(n, "devices/lamp/problem").Message, "no answer within ")
}

// TestAnotherReasonOfADeadDeviceIsSaidWhenItLasts, and not at the pace of the attempts.
func TestAnotherReasonOfADeadDeviceIsSaidWhenItLasts(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	var asked atomic.Int32
	d.read = func(context.Context, string, string) error {
		return errors.New("reason " + strconv.Itoa(int(asked.Add(1))%2))
	}
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "offline")
	from := asked.Load()
	require.Eventually(t, func() bool { return asked.Load() >= from+6 }, testTimeout, pollInterval)
	require.Len(t, n.published("devices/lamp/problem"), 1)
	d.reading(func(context.Context, string, string) error { return errors.New("no power") })
	n.eventually("devices/lamp/problem", `{"code":"Unreachable","message":"no power"}`)
}

func TestAValueThatIsTooLargeIsSaidOnce(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	picture := make([]byte, 150<<10)
	for i := range picture {
		picture[i] = 'A'
	}
	d.toys["lamp"].set("power", string(picture))
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.hasProblem("devices/lamp/problem/power", resource.ValueUnknown)
	picture[0] = 'B'
	d.toys["lamp"].set("power", string(picture[:149<<10]))
	d.toys["lamp"].set("temp", "42")
	n.eventually("devices/lamp/reported/temp", "42")
	require.Len(t, n.published("devices/lamp/problem/power"), 1)
	require.Contains(t, problemOf(n, "devices/lamp/problem/power").Message, "131072")
	require.Empty(t, n.published("devices/lamp/reported/power"))
}

func TestAWriteThatGotLostIsMadeAgainAfterConfirmWithin(t *testing.T) {
	n := newNode(t)
	d := newOdd("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	lost, writes := atomic.Int32{}, atomic.Int32{}
	lost.Store(1)
	d.wait = func(_, property, value string) error {
		writes.Add(1)
		if lost.Add(-1) < 0 {
			d.toys["lamp"].set(property, value)
			return nil
		}
		return errSilence
	}
	n.run(d, nil)
	v := n.want("lamp", "level", "50")
	n.applied("lamp", "level", "50", v)
	require.EqualValues(t, 2, writes.Load())
	require.Empty(t, n.published("devices/lamp/refused/level"))
	lost.Store(2)
	v = n.want("lamp", "level", "60")
	require.Contains(t, n.refused("lamp", "level", v, Unavailable).Message, "confirmWithin")
	require.EqualValues(t, 4, writes.Load())
}
