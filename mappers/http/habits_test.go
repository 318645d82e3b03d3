// SPDX-License-Identifier: Apache-2.0

package http

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
)

// playedRelays are relays behind one address, by the first part of the path, which have habits.
type playedRelays struct {
	*drivertest.HabitPlay
	relays []*relayServer
}

func (p *playedRelays) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	number, _, _ := strings.Cut(strings.TrimPrefix(q.URL.Path, "/"), "/")
	n, err := strconv.Atoi(number)
	if err != nil || n >= len(p.relays) {
		http.NotFound(w, q)
		return
	}
	played := p.Request(n, q.URL.RawQuery == "first", q.Method == http.MethodPut)
	answer := httptest.NewRecorder()
	relay := http.StripPrefix("/"+number, p.relays[n])
	switch {
	case played.Ignored:
		<-q.Context().Done()
		return
	case played.Stranger:
		http.Error(answer, "the relay doesn't answer", http.StatusBadGateway)
	case played.Busy:
		http.Error(answer, "later", http.StatusServiceUnavailable)
	case played.Late:
		later := q.Clone(context.WithoutCancel(q.Context()))
		time.AfterFunc(drivertest.ReadLater, func() { relay.ServeHTTP(httptest.NewRecorder(), later) })
	default:
		relay.ServeHTTP(answer, q)
	}
	if played.Lost {
		<-q.Context().Done()
		return
	}
	time.Sleep(played.Delay) // the device is slow
	w.Header().Set("Content-Length", strconv.Itoa(answer.Body.Len()))
	w.WriteHeader(answer.Code)
	_, _ = answer.Body.WriteTo(w)
	if played.Closes { // without having said so
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func TestTheHabitsOfAllProtocols(t *testing.T) {
	drivertest.RunHabits(t, func(t *testing.T) drivertest.HabitRig {
		p := &playedRelays{HabitPlay: drivertest.NewHabitPlay()}
		for range 20 {
			p.relays = append(p.relays, newRelay(t))
		}
		s := httptest.NewServer(p)
		t.Cleanup(s.Close)
		return drivertest.HabitRig{
			Driver: New(Options{}),
			Device: func(n int) mappers.Device {
				low, high := 0.0, 100.0
				level := newProperty("level", mappers.Int, true, "get", "/status", "path", "level", "write", "PUT /level?set={value}")
				level.Minimum, level.Maximum = &low, &high
				return mappers.Device{
					Name: "relay-" + strconv.Itoa(n), Config: map[string]string{"url": s.URL + "/" + strconv.Itoa(n), "timeout": "400ms"},
					Properties: []mappers.Property{newProperty("temperature", mappers.Float, false, "get", "/status?first", "path", "temperature"), level},
				}
			},
			Set: func(n int, habit drivertest.DeviceHabit, on bool) {
				if habit == drivertest.HabitNoValue {
					p.relays[n].noTemperature(on)
				}
				p.HabitPlay.Set(n, habit, on)
			},
			Wrote: p.Wrote,
		}
	})
}

// noTemperature makes the temperature null.
func (r *relayServer) noTemperature(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state["temperature"] = 21.5
	if yes {
		r.state["temperature"] = nil
	}
}
