// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// Habits are how a simulated device misbehaves, as real ones do.
type Habits struct {
	mu    sync.Mutex
	first []func(*wire.Reply) // before a request is handled
	last  []func(*wire.Reply) // before its answer is sent
	most  int
	idle  time.Duration
}

// habitKind is one habit: how it is explained, what its value is if none is given, and what it does. add gets the value as text, as number and
// as duration.
type habitKind struct {
	help, value string
	add         func(h *Habits, v habitValue)
}

type habitValue struct {
	text     string
	number   int
	duration time.Duration
}

// knownHabits are those that --habit knows.
var knownHabits = map[string]habitKind{
	"closes":         {"closes the connection after each answer", "", func(h *Habits, _ habitValue) { h.after(func(r *wire.Reply) { r.Close = true }) }},
	"idle-close":     {"closes a connection that is idle for so long", "500ms", func(h *Habits, v habitValue) { h.idle = v.duration }},
	"one-connection": {"refuses further connections", "1", func(h *Habits, v habitValue) { h.most = v.number }},
	"deaf": {"swallows what comes so soon after connecting", "1s", func(h *Habits, v habitValue) {
		h.silentIf(func(r *wire.Reply) bool { return time.Since(r.Connected) < v.duration })
	}},
	"pause": {"swallows a request that comes so soon after an answer", "50ms", func(h *Habits, v habitValue) {
		h.silentIf(func(r *wire.Reply) bool { return time.Since(r.LastAnswer) < v.duration })
	}},
	"transaction-id": {"answers with this transaction, whatever it was asked with", "2", func(h *Habits, v habitValue) { h.after(func(r *wire.Reply) { r.Transaction = uint16(v.number) }) }},
	"unit-0":         {"answers as unit 0", "", func(h *Habits, _ habitValue) { h.after(func(r *wire.Reply) { r.Unit = 0 }) }},
	"dead": {"does not answer as this unit", "2", func(h *Habits, v habitValue) {
		h.silentIf(func(r *wire.Reply) bool { return int(r.Call.Unit) == v.number })
	}},
	"silent": {"does not answer requests with this register", "110", func(h *Habits, v habitValue) { h.silentIf(func(r *wire.Reply) bool { return reads(r, v.number) }) }},
	"hole": {"has no such register", "110", func(h *Habits, v habitValue) {
		h.refuseIf(wire.IllegalAddress, func(r *wire.Reply) bool { return reads(r, v.number) })
	}},
	"limit": {"refuses to read more registers with exception 3", "40", func(h *Habits, v habitValue) {
		h.refuseIf(wire.IllegalValue, func(r *wire.Reply) bool { return readsMore(r, v.number) })
	}},
	"limit-silent": {"does not answer when more registers are read", "40", func(h *Habits, v habitValue) { h.silentIf(func(r *wire.Reply) bool { return readsMore(r, v.number) }) }},
	"limit-closes": {"closes the connection when more registers are read", "40", func(h *Habits, v habitValue) { h.closeIf(func(r *wire.Reply) bool { return readsMore(r, v.number) }) }},
	"limit-cuts":   {"answers with so many registers when more are read", "40", addShortAnswers},
	"busy":         {"is busy (exception 06) at each so many-th request", "7", func(h *Habits, v habitValue) { h.refuseIf(wire.DeviceBusy, h.each(v.number)) }},
	"acknowledges": {"answers exception 05 at each so many-th request", "7", func(h *Habits, v habitValue) { h.refuseIf(wire.Acknowledged, h.each(v.number)) }},
	"gateway":      {"is a gateway that has no answer (exception 0B) at each so many-th request", "7", func(h *Habits, v habitValue) { h.refuseIf(wire.TargetSilent, h.each(v.number)) }},
	"slow":         {"takes so long for each answer", "1s", func(h *Habits, v habitValue) { h.after(func(r *wire.Reply) { r.Delay = v.duration }) }},
	"late": {"takes so long for each so many-th answer, which is 5", "3s", func(h *Habits, v habitValue) {
		late := h.each(5)
		h.after(func(r *wire.Reply) { r.Delay = delayIf(late(r), v.duration) })
	}},
	"only-multiple": {"writes with functions 15 and 16 only", "", func(h *Habits, _ habitValue) {
		h.refuseIf(wire.IllegalFunction, writesWith(wire.WriteSingleCoil, wire.WriteSingleRegister))
	}},
	"only-single": {"writes with functions 5 and 6 only", "", func(h *Habits, _ habitValue) {
		h.refuseIf(wire.IllegalFunction, writesWith(wire.WriteMultipleCoils, wire.WriteMultipleRegisters))
	}},
	"old-value": {"tells the value from before a write for so long", "3s", addOldValues},
	"no-identification": {"closes the connection when asked for its identification", "", func(h *Habits, _ habitValue) {
		h.closeIf(func(r *wire.Reply) bool { return r.Call.Function == wire.Encapsulated })
	}},
}

func (h *Habits) after(f func(*wire.Reply)) { h.last = append(h.last, f) }

func (h *Habits) before(f func(*wire.Reply)) { h.first = append(h.first, f) }

func (h *Habits) silentIf(is func(*wire.Reply) bool) {
	h.before(func(r *wire.Reply) { r.Silent = r.Silent || is(r) })
}

func (h *Habits) closeIf(is func(*wire.Reply) bool) {
	h.before(func(r *wire.Reply) { r.Close = r.Close || is(r) })
}

func (h *Habits) refuseIf(e wire.Exception, is func(*wire.Reply) bool) {
	h.before(func(r *wire.Reply) {
		if is(r) {
			r.Refuse(e)
		}
	})
}

// each is true at each n-th request.
func (h *Habits) each(n int) func(*wire.Reply) bool {
	count := 0
	return func(*wire.Reply) bool {
		count++
		return count%max(n, 1) == 0
	}
}

func delayIf(is bool, d time.Duration) time.Duration {
	if is {
		return d
	}
	return 0
}

func reads(r *wire.Reply, address int) bool {
	c := r.Call
	return !c.IsWrite() && c.Function >= wire.ReadHoldingRegisters && c.Function <= wire.ReadInputRegisters && int(c.Address) <= address && address < int(c.Address)+int(c.Quantity)
}

func readsMore(r *wire.Reply, most int) bool {
	c := r.Call
	return !c.IsWrite() && c.Function >= wire.ReadHoldingRegisters && c.Function <= wire.ReadInputRegisters && int(c.Quantity) > most
}

func writesWith(functions ...byte) func(*wire.Reply) bool {
	return func(r *wire.Reply) bool { return slices.Contains(functions, r.Call.Function) }
}

func addShortAnswers(h *Habits, v habitValue) {
	h.after(func(r *wire.Reply) {
		if readsMore(r, v.number) && len(r.PDU) > 2+2*v.number {
			r.PDU = r.PDU[:2+2*v.number]
			r.PDU[1] = byte(2 * v.number)
		}
	})
}

// addOldValues has reads of a register answered as they were before it was written.
func addOldValues(h *Habits, v habitValue) {
	type register struct {
		unit    byte
		address uint16
	}
	said, written := map[register]uint16{}, map[register]time.Time{}
	h.after(func(r *wire.Reply) {
		c := r.Call
		if c.Function != wire.ReadHoldingRegisters && c.Function != wire.WriteSingleRegister && c.Function != wire.WriteMultipleRegisters || r.PDU[0] != c.Function {
			return
		}
		for i := range c.Quantity {
			at := register{c.Unit, c.Address + i}
			switch old, ok := said[at]; {
			case c.IsWrite():
				written[at] = time.Now()
			case ok && time.Since(written[at]) < v.duration:
				r.PDU[2+2*i], r.PDU[3+2*i] = byte(old>>8), byte(old)
			default:
				said[at] = uint16(r.PDU[2+2*i])<<8 | uint16(r.PDU[3+2*i])
			}
		}
	})
}

// Set implements pflag.Value: NAME or NAME=VALUE.
func (h *Habits) Set(text string) error {
	name, value, given := strings.Cut(text, "=")
	known, ok := knownHabits[name]
	if !ok {
		return fmt.Errorf("%q is no habit: it is one of %s", name, strings.Join(slices.Sorted(maps.Keys(knownHabits)), ", "))
	}
	if !given {
		value = known.value
	}
	v := habitValue{text: value}
	switch d, err := time.ParseDuration(known.value); {
	case known.value == "" && value != "":
		return fmt.Errorf("%s has no value", name)
	case known.value == "":
	case err == nil && d > 0:
		if v.duration, err = time.ParseDuration(value); err != nil || v.duration < 0 {
			return fmt.Errorf("%s=%s: must be a duration, such as %s", name, value, known.value)
		}
	default:
		if v.number, err = strconv.Atoi(value); err != nil || v.number < 0 || v.number > 65535 {
			return fmt.Errorf("%s=%s: must be a number from 0 to 65535, such as %s", name, value, known.value)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	known.add(h, v)
	return nil
}

// Type implements pflag.Value.
func (h *Habits) Type() string { return "name" }

func (h *Habits) String() string { return "" }

// Clear ends all habits but those of connections.
func (h *Habits) Clear() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.first, h.last = nil, nil
}

// apply gives a server the habits.
func (h *Habits) apply(s *wire.Server) {
	s.Most = h.most
	if h.idle > 0 {
		s.Idle = h.idle
	}
	run := func(list *[]func(*wire.Reply)) func(*wire.Reply) {
		return func(r *wire.Reply) {
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, f := range *list {
				f(r)
			}
		}
	}
	s.Before, s.After = run(&h.first), run(&h.last)
}

// habitsHelp lists the habits.
func habitsHelp() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(knownHabits)) {
		x := knownHabits[name]
		if x.value != "" {
			name += "=" + x.value
		}
		fmt.Fprintf(&b, "  %-20s %s\n", name, x.help)
	}
	return strings.TrimRight(b.String(), "\n")
}
