// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/history"
	"github.com/edgebus/edgebus/topics/resource"
)

// nodeDevices are a node's Devices.
type nodeDevices struct {
	mu  sync.Mutex
	all map[string]*resource.Bundle // by name
}

func (d *nodeDevices) Bundle(name string) (b resource.Bundle, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if found := d.all[name]; found != nil {
		return *found, true
	}
	return b, false
}

func (d *nodeDevices) Bundles() map[string]resource.Bundle {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[string]resource.Bundle)
	for _, b := range d.all {
		all[b.Device.Metadata.UID] = *b
	}
	return all
}

func meterBundle(local ...string) *resource.Bundle {
	var b resource.Bundle
	b.Device.Metadata, b.Device.Spec.Local = resource.Meta{Name: "meter", UID: "u1"}, local
	b.Model.Spec.Properties = []resource.Property{{Name: "power", Type: resource.TypeFloat}, {Name: "presence", Type: resource.TypeString}}
	return &b
}

func openRecorder(t *testing.T, dir string, b *resource.Bundle) *Recorder {
	h, err := Open(Options{Dir: dir, Bytes: 64 << 20, Log: zerolog.Nop()})
	require.NoError(t, err)
	h.Follow(&nodeDevices{all: map[string]*resource.Bundle{b.Device.Metadata.Name: b}})
	return h
}

// runRecorder runs it until the returned function is called.
func runRecorder(t *testing.T, h *Recorder) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- h.Run(ctx) }()
	return func() { cancel(); require.NoError(t, <-ended) }
}

func readPast(t *testing.T, h *Recorder, property string) []any {
	_, source, err := h.Find(t.Context(), "", "meter")
	require.NoError(t, err)
	q := history.Query{SeriesKey: history.SeriesKey{Device: "u1", Property: property}, From: time.Now().Add(-2 * time.Hour).UnixMilli(), To: time.Now().Add(time.Hour).UnixMilli(), Points: 10000}
	a, err := source.Read(t.Context(), q)
	require.NoError(t, err)
	return a.Values
}

// sentCopy is the hub's end of a connection.
type sentCopy struct {
	mu    sync.Mutex
	copy  *history.StoreCopy
	sizes []int
	slow  time.Duration // to answer
	off   bool
	s     *CopySender
}

func connectCopy(t *testing.T, dir string) *sentCopy {
	c, err := history.OpenCopy(history.Options{Dir: dir, Bytes: 64 << 20, Log: zerolog.Nop()})
	require.NoError(t, err)
	to := &sentCopy{copy: c}
	to.s = NewSending(func(payload []byte) { go to.take(payload) }, freeBudget{})
	return to
}

func (c *sentCopy) take(payload []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := history.DecodePart(payload)
	if err != nil {
		return
	}
	c.sizes = append(c.sizes, len(payload))
	w := history.WantedPart{Off: c.off}
	if !c.off {
		if w, err = c.copy.Add(p); err != nil {
			return
		}
	}
	answer, _ := json.Marshal(w)
	time.AfterFunc(c.slow, func() { c.s.Received(answer) })
}

func (c *sentCopy) sent() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]int{}, c.sizes...)
}

func (c *sentCopy) read(t *testing.T, property string) []any {
	a, err := c.copy.Read(t.Context(), history.Query{SeriesKey: history.SeriesKey{Device: "u1", Property: property}, From: time.Now().Add(-2 * time.Hour).UnixMilli(), To: time.Now().Add(time.Hour).UnixMilli(), Points: 10000})
	require.NoError(t, err)
	return a.Values
}

type freeBudget struct{}

func (freeBudget) Wait() time.Duration { return 0 }
func (freeBudget) Download(int)        {}

func (h *Recorder) sendTo(c *sentCopy) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { h.Send(ctx, c.s); close(done) }()
	return func() { cancel(); <-done }
}

// TestWhatADeviceKeepsOnTheNodeIsReadThereAndNeverSent: its past, too.
func TestWhatADeviceKeepsOnTheNodeIsReadThereAndNeverSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, b := t.TempDir(), meterBundle("presence")
		h := openRecorder(t, dir, b)
		defer runRecorder(t, h)()
		hub := connectCopy(t, filepath.Join(dir, "hub"))
		defer h.sendTo(hub)()
		for n := range 600 {
			h.Record(b, "power", strconv.Itoa(n), time.Now().UnixMilli())
			h.Record(b, "presence", "room "+strconv.Itoa(n%7), time.Now().UnixMilli())
			time.Sleep(time.Second) // of synctest's clock: values come each second
		}
		time.Sleep(10 * time.Minute) // of the same: a small rest is sent after five
		require.NotEmpty(t, readPast(t, h, "presence"))
		require.Contains(t, readPast(t, h, "power"), 599.0)
		power := hub.read(t, "power")
		require.GreaterOrEqual(t, len(power), 600)
		require.Empty(t, hub.read(t, "presence"))
	})
}

func TestWhatIsNotToBeRecordedIsNot(t *testing.T) {
	now := time.Now()
	b := meterBundle()
	h := openRecorder(t, t.TempDir(), b)
	h.Record(b, "power", "1", now.UnixMilli())
	h.Record(b, "unknown", "1", now.UnixMilli())
	require.Equal(t, []any{1.0}, readPast(t, h, "power")[:1])
	require.Empty(t, readPast(t, h, "unknown"))
	b.Model.Spec.Properties[1].History = &resource.PropertyHistory{Disabled: true}
	h.Record(b, "presence", "hall", now.UnixMilli())
	require.Empty(t, readPast(t, h, "presence"))
	b.Device.Spec.History = &resource.DeviceHistory{NotBefore: resource.FormatTime(now.Add(time.Minute))}
	h.Record(b, "power", "2", now.Add(time.Second).UnixMilli())
	require.NotContains(t, readPast(t, h, "power"), 2.0)
	_, _, err := h.Find(t.Context(), "", "other")
	require.ErrorContains(t, err, `device "other" does not belong to this node`)
}

// TestPartsFollowTheLink: small ones where the hub's answers are slow, so that state doesn't wait for them; and an hour's pause for a hub that
// keeps none.
func TestPartsFollowTheLink(t *testing.T) {
	for _, slow := range []time.Duration{0, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			dir, b := t.TempDir(), meterBundle()
			h := openRecorder(t, dir, b)
			defer runRecorder(t, h)()
			for n := range 40_000 {
				h.Record(b, "power", strconv.Itoa(n*7919%100_003), time.Now().UnixMilli()+int64(n))
			}
			time.Sleep(2 * time.Minute) // of synctest's clock: it is written
			hub := connectCopy(t, filepath.Join(dir, "hub"))
			hub.slow = slow
			defer h.sendTo(hub)()
			time.Sleep(10 * time.Minute) // of the same
			largest := 0
			for _, size := range hub.sent()[3:] {
				largest = max(largest, size)
			}
			if slow == 0 {
				require.Greater(t, largest, 30<<10)
			} else {
				require.LessOrEqual(t, largest, 3<<10)
			}
			require.Greater(t, len(hub.read(t, "power")), 30, "in means of a second")
			hub.off = true
			h.Record(b, "power", "1", time.Now().UnixMilli())
			time.Sleep(7 * time.Minute) // of the same
			before := len(hub.sent())
			time.Sleep(50 * time.Minute) // of the same
			require.LessOrEqual(t, len(hub.sent())-before, 1)
		})
	}
}
