// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// blockProperties are n registers of the simulator's block, next to each other.
func blockProperties(n int) (list []mappers.Property) {
	for i := range n {
		list = append(list, newProperty(fmt.Sprintf("r%d", blockAddress+i), mappers.Int, true, "register", "holding", "address", fmt.Sprint(blockAddress+i), "type", "uint16"))
	}
	return list
}

// habitRig is a simulated device with habits, and a session for it.
type habitRig struct {
	t       *testing.T
	s       *session
	habits  *Habits
	started time.Time
}

func newHabitRig(t *testing.T, registers int, config string, names ...string) *habitRig {
	t.Helper()
	r := &habitRig{t: t, habits: &Habits{}, started: time.Now()}
	for _, name := range names {
		require.NoError(t, r.habits.Set(name))
	}
	sim, err := NewSimulator(SimulatorOptions{Habits: r.habits, Units: 3})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sim.Close() })
	d := mappers.Device{Name: "d", Config: map[string]string{"address": sim.Addr(), "timeout": "300ms"}, Properties: blockProperties(registers)}
	for _, kv := range strings.Fields(config) {
		k, v, _ := strings.Cut(kv, "=")
		d.Config[k] = v
	}
	r.s = openDevice(t, d)
	return r
}

// cycle reads all properties as the SDK does: group by group, one that has failed once more over a fresh connection. It returns what was
// not read.
func (r *habitRig) cycle() (failed map[string]error, requests int) {
	r.t.Helper()
	failed = map[string]error{}
	for _, group := range r.s.Group(slices.Collect(maps.Keys(r.s.config.fields))) {
		got, err := r.s.ReadBatch(r.t.Context(), group)
		requests++
		if _, refused := asRefusal(err); err != nil && !refused {
			r.s.Reconnect()
			got, err = r.s.ReadBatch(r.t.Context(), group)
		}
		for _, name := range group {
			switch x := got[name]; {
			case err != nil:
				failed[name] = err
			case x.Err != nil:
				failed[name] = x.Err
			default:
				require.Equal(r.t, name, "r"+x.Value, "a wrong value")
			}
		}
	}
	return failed, requests
}

// settle makes cycles until all registers but those named are read, four times in a row: on a busy machine an answer may come too late.
func (r *habitRig) settle(requests int, missing ...string) {
	r.t.Helper()
	var failed map[string]error
	made, row := 0, 0
	for limit := time.Now().Add(10 * time.Second); row < 4 && time.Now().Before(limit); row++ {
		failed, made = r.cycle()
		if !slices.Equal(slices.Sorted(maps.Keys(failed)), missing) || made != requests {
			row = -1
		}
	}
	require.Equal(r.t, missing, slices.Sorted(maps.Keys(failed)), "%v", failed)
	require.Equal(r.t, requests, made)
	require.Equal(r.t, 4, row, "it does not last")
}

// TestEachHabitIsBorne: with a habit, all values are read that can be, none is wrong, and what spoils a request is found out and left
// out: requests is how many a cycle needs then.
func TestEachHabitIsBorne(t *testing.T) {
	for habit, want := range map[string]struct {
		registers, requests int
		config              string
		missing             []string
	}{
		"closes":              {60, 1, "", nil},
		"idle-close=30ms":     {60, 1, "", nil},
		"one-connection":      {60, 1, "", nil},
		"deaf=500ms":          {60, 1, "", nil},
		"pause=20ms":          {60, 1, "", nil},
		"transaction-id":      {60, 1, "", nil},
		"unit-0":              {60, 1, "", nil},
		"silent=110":          {60, 3, "", []string{"r110"}},
		"hole=110":            {60, 3, "", []string{"r110"}},
		"limit=40":            {60, 2, "", nil},
		"limit=5":             {60, 12, "", nil},
		"limit-silent=40":     {60, 2, "", nil},
		"limit-closes=40":     {60, 2, "", nil},
		"limit-cuts=40":       {60, 2, "", nil},
		"slow=50ms":           {60, 1, "", nil},
		"old-value":           {60, 1, "", nil},
		"no-identification":   {60, 1, "", nil},
		"only-single":         {60, 1, "", nil},
		"limit-silent=30 ":    {60, 2, "maxRegisters=30", nil},
		"deaf=600ms ":         {60, 1, "connectDelay=700ms connect=request timeout=2s", nil},
		"closes  ":            {60, 1, "connect=request", nil},
		"idle-close=30ms    ": {60, 1, "connect=cycle", nil},
	} {
		t.Run(habit, func(t *testing.T) {
			t.Parallel()
			r := newHabitRig(t, want.registers, want.config, strings.TrimSpace(habit))
			require.NoError(t, r.s.Ping(t.Context()))
			r.settle(want.requests, want.missing...)
			if !strings.HasPrefix(habit, "pause") {
				require.Zero(t, r.s.bus.learned.pause, "it does not need one")
			}
		})
	}
}

// A register that is never answered, asked for first over each connection, looks like a device that is deaf then.
func TestASilentRegisterIsNoReasonToWaitAfterConnecting(t *testing.T) {
	for habit, delay := range map[string]time.Duration{"silent=100": 0, "deaf=500ms": time.Second} {
		t.Run(habit, func(t *testing.T) {
			t.Parallel()
			r := newHabitRig(t, 2, "maxRegisters=1 timeout=1s", habit)
			answered := 0 // connections over which the second request was
			for tries := 0; tries < 20 && answered < 3; tries++ {
				_, _ = r.s.ReadBatch(t.Context(), []string{"r100"})
				if _, err := r.s.ReadBatch(t.Context(), []string{"r101"}); err == nil {
					answered++
				}
				if r.s.bus.close(); delay > 0 && r.s.bus.learned.connectDelay == 0 { // connecting may have taken as long as it is deaf
					answered = 0
				}
			}
			require.Equal(t, 3, answered)
			require.Equal(t, delay, r.s.bus.learned.connectDelay)
		})
	}
}

// TestAHabitThatEndsIsForgotten: what a device has stopped to do is read again within 5 s.
func TestAHabitThatEndsIsForgotten(t *testing.T) {
	for _, habit := range []string{"silent=110", "hole=110", "dead=1"} {
		t.Run(habit, func(t *testing.T) {
			t.Parallel()
			r := newHabitRig(t, 20, "", habit)
			for range 4 {
				failed, _ := r.cycle()
				require.NotEmpty(t, failed)
			}
			r.habits.Clear()
			require.Eventually(t, func() bool {
				failed, _ := r.cycle()
				return len(failed) == 0
			}, 5*time.Second, 10*time.Millisecond)
		})
	}
}

// TestABusyDeviceSaysSoAndAGatewayIsNotTheDevice: the SDK knows one from the other.
func TestABusyDeviceSaysSoAndAGatewayIsNotTheDevice(t *testing.T) {
	for habit, code := range map[string]wire.Exception{"busy=2": wire.DeviceBusy, "acknowledges=2": wire.Acknowledged, "gateway=2": wire.TargetSilent} {
		r := newHabitRig(t, 60, "", habit)
		var refused, read int
		for range 10 {
			_, err := r.s.ReadBatch(t.Context(), []string{"r100", "r101"})
			if err == nil {
				read++
				continue
			}
			require.ErrorIs(t, err, code)
			refused++
		}
		require.Equal(t, 5, refused, habit)
		require.Equal(t, 5, read, habit)
		require.Zero(t, r.s.layout.since, "nothing is learned of it")
	}
}

// TestALateAnswerIsNoWrongValue: the answer of a request that was given up is not taken for another register's.
func TestALateAnswerIsNoWrongValue(t *testing.T) {
	for _, habits := range [][]string{{"late=400ms"}, {"late=400ms", "transaction-id"}} {
		r := newHabitRig(t, 3, "gap=0 maxRegisters=1", habits...)
		late := 0
		for range 10 {
			failed, _ := r.cycle()
			late += len(failed)
		}
		t.Log(habits, late, "reads failed")
	}
}

func TestADeadUnitHarmsNoNeighbour(t *testing.T) {
	habits := &Habits{}
	require.NoError(t, habits.Set("dead=2"))
	require.NoError(t, habits.Set("one-connection"))
	var connections atomic.Int32
	habits.before(func(r *wire.Reply) {
		if r.LastAnswer.IsZero() {
			connections.Add(1)
		}
	})
	sim, err := NewSimulator(SimulatorOptions{Habits: habits, Units: 3})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sim.Close() })
	driver := New(Options{})
	var units []*session
	for unit := range 3 {
		s, err := driver.Open(t.Context(), mappers.Device{
			Name: fmt.Sprint(unit), Config: map[string]string{"address": sim.Addr(), "unit": fmt.Sprint(unit + 1), "timeout": "50ms"}, Properties: blockProperties(3),
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Close() })
		units = append(units, s.(*session))
	}
	for range 10 {
		for i, s := range units {
			_, err := s.ReadBatch(t.Context(), []string{"r100", "r101"})
			if i != 1 {
				require.NoError(t, err, "unit %d", i+1)
				continue
			}
			require.True(t, wire.IsTimeout(err), err)
			s.Reconnect()
			_, err = s.ReadBatch(t.Context(), []string{"r100", "r101"})
			require.True(t, wire.IsTimeout(err), err)
		}
	}
	require.EqualValues(t, 1, connections.Load(), "the dead unit's time-outs don't end the connection of the others")
}

// A gateway may be deaf just after connecting: the first request over a connection is made again, and not those to each dead unit behind it.
func TestDeadUnitsBehindAFreshConnectionAreAskedOnce(t *testing.T) {
	t.Parallel()
	habits := &Habits{}
	const living = 4
	var mu sync.Mutex
	asked := map[uint8]int{}
	habits.before(func(r *wire.Reply) {
		mu.Lock()
		defer mu.Unlock()
		asked[r.Unit]++
		r.Silent = r.Silent || r.Unit < living
	})
	sim, err := NewSimulator(SimulatorOptions{Habits: habits, Units: living})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sim.Close() })
	driver := New(Options{})
	var units []*session
	for unit := range living {
		s, err := driver.Open(t.Context(), mappers.Device{
			Name: fmt.Sprint(unit), Config: map[string]string{"address": sim.Addr(), "unit": fmt.Sprint(unit + 1), "timeout": (deafTime + 100*time.Millisecond).String()}, Properties: blockProperties(3),
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Close() })
		units = append(units, s.(*session))
	}
	for i, s := range units {
		if err := s.Ping(t.Context()); i+1 == living {
			require.NoError(t, err)
		} else {
			require.True(t, wire.IsTimeout(err), err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, map[uint8]int{1: 2, 2: 1, 3: 1, 4: 1}, asked)
}

func TestWritesWithTheFunctionsThatTheDeviceKnows(t *testing.T) {
	for _, c := range []struct{ habit, config, error string }{
		{"only-multiple", "", ""}, {"only-multiple", "write=multiple", ""}, {"only-single", "", "set write: single"}, {"only-single", "write=single", ""},
	} {
		r := newHabitRig(t, 1, c.config, c.habit)
		wide := newProperty("wide", mappers.Int, true, "register", "holding", "address", "110", "type", "uint32")
		f, err := parseField(wide)
		require.NoError(t, err)
		r.s.config.fields["wide"] = f
		require.NoError(t, r.s.Write(t.Context(), "r100", "7"))
		require.Equal(t, "7", r.s.get(t, "r100"))
		err = r.s.Write(t.Context(), "wide", "65537")
		if c.error != "" {
			require.ErrorContains(t, err, c.error)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, "65537", r.s.get(t, "wide"))
	}
}

// TestAWriteIsNotRepeated, whatever happens to the connection.
func TestAWriteIsNotRepeated(t *testing.T) {
	for _, habit := range []string{"closes", "transaction-id", "idle-close=20ms"} {
		r := newHabitRig(t, 1, "", habit)
		var writes atomic.Int32
		r.habits.before(func(x *wire.Reply) {
			if x.Call.IsWrite() {
				writes.Add(1)
			}
		})
		_ = r.s.get(t, "r100")
		// A connection that the device ends while the write is on its way leaves it open whether the device has it: the SDK reads it back.
		if err := r.s.Write(t.Context(), "r100", "8"); err == nil {
			require.EqualValues(t, 1, writes.Load(), habit)
		}
		require.LessOrEqual(t, writes.Load(), int32(1), habit)
	}
	r := newHabitRig(t, 1, "")
	var writes atomic.Int32
	r.habits.before(func(x *wire.Reply) {
		if x.Call.IsWrite() {
			writes.Add(1)
			x.Close = true
		}
	})
	require.Equal(t, "100", r.s.get(t, "r100"))
	err := r.s.Write(t.Context(), "r100", "8")
	require.True(t, wire.IsClosed(err), "nobody knows whether it was done: %v", err)
	require.EqualValues(t, 1, writes.Load())
}

// TestWhatWasLearnedIsToldAndDoubtedOnceADay.
func TestWhatWasLearnedIsToldAndDoubtedOnceADay(t *testing.T) {
	r := newHabitRig(t, 60, "", "limit=40")
	r.settle(2)
	require.EqualValues(t, 40, r.s.layout.most)
	r.habits.Clear()
	r.settle(2)
	r.s.layout.since = r.s.layout.since.Add(-doubtAfter)
	r.settle(1)
}

func TestTheHabitsOfTheSimulatorAreListedAndChecked(t *testing.T) {
	for _, text := range []string{"lazy", "closes=1", "limit=x", "pause=soon", "limit=-1"} {
		require.Error(t, (&Habits{}).Set(text), text)
	}
	for name := range knownHabits {
		require.NoError(t, (&Habits{}).Set(name))
		require.Contains(t, habitsHelp(), name)
	}
}

// TestACommandWritesOnce: the value of its visitor, or its input.
func TestACommandWritesOnce(t *testing.T) {
	habits := &Habits{}
	require.NoError(t, habits.Set("acknowledges=3"))
	sim, err := NewSimulator(SimulatorOptions{Habits: habits})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sim.Close() })
	command := func(typ mappers.Type, config ...string) mappers.Property {
		return newProperty("do", typ, false, append([]string{"register", "holding", "type", "uint16"}, config...)...)
	}
	d := mappers.Device{Name: "d", Config: map[string]string{"address": sim.Addr()}, Properties: blockProperties(12)}
	d.Commands = []mappers.Property{command("", "address", "110", "value", "21930"), command(mappers.Int, "address", "111")}
	d.Commands[1].Name = "beep"
	s := openDevice(t, d)
	answer, err := s.Command(t.Context(), "do", nil)
	require.NoError(t, err)
	require.Equal(t, "ok", string(answer))
	require.Equal(t, "21930", s.get(t, "r110"))
	_, err = s.Command(t.Context(), "beep", []byte("3"))
	require.NoError(t, err, "the device says that it has begun")
	_, err = s.Command(t.Context(), "fly", nil)
	require.ErrorContains(t, err, "NotReachable")
	require.NoError(t, sim.Close())
	_, err = s.ReadBatch(t.Context(), []string{"r110"})
	require.Error(t, err)
	var refused *mappers.Refusal
	_, err = s.Command(t.Context(), "do", nil)
	require.ErrorAs(t, err, &refused, "nothing was sent")
	require.NotContains(t, fmt.Sprint(s.Group([]string{"do"})), "do", "it is never polled")

	for _, bad := range []mappers.Property{command("", "address", "1"), command(mappers.Int, "address", "1", "value", "1"), command("", "address", "1", "value", "70000"), command("", "address", "1", "value", "x")} {
		d.Commands = []mappers.Property{bad}
		_, err := New(Options{}).Open(t.Context(), d)
		require.ErrorContains(t, err, "visitors[do].config.", bad.Config)
	}
}

// On a line without transactions a unit that hasn't answered is left alone for a while. That it is left alone is no answer, and no reason to
// ask it again and again.
func TestAUnitThatHasNeverAnsweredIsAskedAtItsPace(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	driver := New(Options{})
	var units []*session
	for _, unit := range []string{"1", "2"} {
		s, err := driver.Open(t.Context(), mappers.Device{Name: "dead-" + unit, Config: map[string]string{"address": "rtuovertcp://" + l.Addr().String(), "unit": unit, "timeout": "100ms"}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Close() })
		units = append(units, s.(*session))
	}
	for range 5 {
		for _, unit := range units {
			_, err := unit.request(t.Context(), wire.Read(3, 0, 1), 100*time.Millisecond)
			require.True(t, wire.IsTimeout(err), err)
		}
	}
}
