// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"encoding/json"
	"math"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/history"
	"github.com/edgebus/edgebus/topics/resource"
)

var temperatureProperty = resource.Property{Name: "temperature", Type: resource.TypeDouble}

func hallDevice() (b resource.Bundle) {
	b.Device.Metadata = resource.Meta{Name: "hall", UID: "1"}
	b.Model.Spec.Properties = []resource.Property{temperatureProperty}
	return b
}

// recordedStore is a store with values of the hall, a second each.
func recordedStore(t *testing.T, values ...float64) *history.Store {
	s, err := history.Open(history.Options{Dir: t.TempDir(), Log: zerolog.Nop()})
	require.NoError(t, err)
	for i, v := range values {
		at := time.Now().Add(time.Duration(i-len(values)) * time.Second).UnixMilli()
		s.Record(history.SeriesKey{Device: "1", Property: temperatureProperty.Name}, temperatureProperty, strconv.FormatFloat(v, 'g', -1, 64), at, 0)
	}
	return s
}

func askHistory(t *testing.T, s *history.Store, from, to string) (a resource.HistoryAnswer, err error) {
	q := url.Values{"property": {"temperature"}, "points": {"2"}, "from": {from}, "to": {to}}
	w := httptest.NewRecorder()
	err = ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), "GET", "/?"+q.Encode(), nil), hallDevice(), s)
	if err == nil {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a), w.Body.String())
	}
	return a, err
}

func TestTimesThatNoClockShowsAreRefusedByName(t *testing.T) {
	s := recordedStore(t, 1, 2, 3)
	late, early := strconv.Itoa(math.MaxInt64), strconv.Itoa(math.MinInt64)
	_, err := askHistory(t, s, "0", late)
	require.ErrorContains(t, err, "to: "+late+": milliseconds since 1970 are 0 to 253402300799999")
	_, err = askHistory(t, s, early, "9999-12-31T23:59:59Z")
	require.ErrorContains(t, err, "from: "+early)
	require.Equal(t, resource.Invalid, resource.KindOf(err))
	a, err := askHistory(t, s, "0001-01-01T00:00:00Z", "253402300799999")
	require.NoError(t, err)
	require.NotEmpty(t, a.Values)
}

func TestTheGreatestNumbersHaveAMean(t *testing.T) {
	a, err := askHistory(t, recordedStore(t, math.MaxFloat64, -math.MaxFloat64, math.MaxFloat64, -math.MaxFloat64), "1h", "")
	require.NoError(t, err)
	require.NotEmpty(t, a.Values)
	require.InDelta(t, math.MaxFloat64, *a.Max[0], 0)
}

// heldTree refuses what is no request for history.
type heldTree struct{ broker.Tree }

// TestOneUsersRequestsLeaveRoomForOthers: however long hers take.
func TestOneUsersRequestsLeaveRoomForOthers(t *testing.T) {
	release := make(chan struct{})
	r := New(Options{
		Find: func(context.Context, string, string) (resource.Bundle, Source, error) {
			<-release
			return hallDevice(), recordedStore(t, 1), nil
		},
		Tree: heldTree{}, Publish: func(broker.Message) {},
	})
	answers := make(chan error, 2*maxRequests)
	ask := func(user, client string) {
		m := broker.Message{
			Topic: "v1/nodes/n1/devices/hall/history", Payload: []byte(`{"property":"temperature"}`), Props: broker.Properties{ResponseTopic: "reply/me"},
			Publisher: &broker.Identity{User: user, ClientID: client},
		}
		r.Publish(m, func(err error) { answers <- err })
	}
	for range maxOfUser {
		ask("ann", "page")
	}
	ask("ann", "other")
	require.ErrorContains(t, <-answers, "8 requests of yours for history are being answered")
	for n := range maxRequests - maxOfUser {
		ask("", "client"+strconv.Itoa(n/maxOfUser))
	}
	ask("ben", "page")
	require.ErrorContains(t, <-answers, "32 requests for history are being answered")
	close(release)
	for range maxRequests {
		require.NoError(t, <-answers)
	}
	require.Eventually(t, func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.running == 0 && len(r.of) == 0 }, 10*time.Second, time.Millisecond)
	ask("ann", "page")
	require.NoError(t, <-answers)
}

func TestThePastOfADeviceIsInTheOrderOfTimeAndOfItsTypes(t *testing.T) {
	s, err := history.Open(history.Options{Dir: t.TempDir(), Log: zerolog.Nop()})
	require.NoError(t, err)
	b := hallDevice()
	b.Model.Spec.Properties = append(b.Model.Spec.Properties, resource.Property{Name: "count", Type: resource.TypeInt}, resource.Property{Name: "open", Type: resource.TypeBoolean},
		resource.Property{Name: "mode"}, resource.Property{Name: "secret", History: &resource.PropertyHistory{Disabled: true}})
	now := time.Now().Truncate(time.Millisecond)
	for i, v := range []struct{ property, value string }{
		{"temperature", "20.5"}, {"count", "7000000"}, {"open", "true"}, {"mode", "heat"}, {"secret", "x"}, {"temperature", "21"}, {"open", "false"},
	} {
		p, _ := b.Model.Property(v.property)
		s.Record(history.SeriesKey{Device: "1", Property: v.property}, p, v.value, now.Add(time.Duration(i-10)*time.Second).UnixMilli(), 0)
	}
	list, err := ReadPast(t.Context(), b, s, now.Add(-time.Minute), now)
	require.NoError(t, err)
	var said []string
	for _, v := range list {
		require.True(t, v.Known)
		said = append(said, v.At.Sub(now).String()+" "+v.Property+"="+v.Text)
	}
	require.Equal(t, []string{"-10s temperature=20.5", "-9s count=7000000", "-8s open=true", "-7s mode=heat", "-5s temperature=21", "-4s open=false"}, said)
	list, err = ReadPast(t.Context(), b, s, now.Add(time.Hour), now)
	require.NoError(t, err)
	require.Empty(t, list)
}
