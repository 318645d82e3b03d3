// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/discovery/handler"
)

func TestDetails(t *testing.T) {
	type settings struct {
		Ranges []string `yaml:"ranges"`
		Unit   int      `yaml:"unit"`
	}
	for _, c := range []struct{ details, wrong string }{
		{"", ""},
		{"# nothing but a comment\n", ""},
		{"ranges: [10.0.0.0/24]\nunit: 3\n", ""},
		{`{"ranges": ["10.0.0.0/24"], "unit": 3}`, ""},
		{"range: []", "line 1: there is no field range: it is one of ranges, unit"},
		{"unit: three", "line 1: `three` is no int"},
		{"unit: [", "yaml"},
	} {
		s := settings{Unit: 3}
		err := handler.Details(c.details, &s)
		if c.wrong == "" {
			require.NoError(t, err, c.details)
			require.Equal(t, 3, s.Unit)
			continue
		}
		require.ErrorContains(t, err, c.wrong)
		require.True(t, handler.IsInvalidArgument(fmt.Errorf("wrapped: %w", err)))
	}
	require.ErrorContains(t, handler.Details("unit: three", &map[string]int{}), "line 1: `three` is no int", "a handler may read them into a map")
	require.False(t, handler.IsInvalidArgument(errors.New("the network is down")))
}

func TestEvery(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	require.NoError(t, handler.RunEvery(ctx, 1, func() error {
		if looks++; looks == 3 {
			cancel()
			return ctx.Err()
		}
		return nil
	}))
	require.Equal(t, 3, looks)
	down := errors.New("down")
	require.ErrorIs(t, handler.RunEvery(t.Context(), 1, func() error { return down }), down)
}

// A Configuration's details that are fields are texts, which have the rest in YAML or JSON.
func TestDetailsMayBeFields(t *testing.T) {
	type details struct {
		Format   string            `yaml:"format"`
		Filter   map[string]string `yaml:"filter"`
		Ranges   []string          `yaml:"ranges"`
		Port     int               `yaml:"port"`
		Deep     bool              `yaml:"deep"`
		Interval time.Duration     `yaml:"interval"`
	}
	want := details{"sparkplug", map[string]string{"A": "?*"}, []string{"10.0.0.0/28"}, 502, true, time.Minute}
	for _, text := range []string{
		`{"format":"sparkplug","filter":"{\"A\":\"?*\"}","ranges":"[\"10.0.0.0/28\"]","port":"502","deep":"true","interval":"1m"}`,
		`{"format":"sparkplug","filter":"A: \"?*\"","ranges":"[10.0.0.0/28]","port":"502","deep":"true","interval":"1m"}`,
		"format: sparkplug\nfilter: {A: \"?*\"}\nranges: [10.0.0.0/28]\nport: 502\ndeep: true\ninterval: 1m",
		"format: sparkplug\nfilter: |\n  A: \"?*\"\nranges: [10.0.0.0/28]\nport: 502\ndeep: true\ninterval: 1m",
	} {
		var got details
		require.NoError(t, handler.Details(text, &got), text)
		require.Equal(t, want, got, text)
	}
	for _, wrong := range []string{`{"filter":"plant"}`, `{"port":"many"}`, `{"filtre":"{}"}`, "a: b: c"} {
		require.True(t, handler.IsInvalidArgument(handler.Details(wrong, new(details))), wrong)
	}
	number := struct {
		Format string `yaml:"format"`
	}{}
	require.NoError(t, handler.Details(`{"format":"12"}`, &number), "a text stays one")
	require.Equal(t, "12", number.Format)
}
