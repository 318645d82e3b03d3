package handler_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

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
	require.False(t, handler.IsInvalidArgument(errors.New("the network is down")))
}

func TestEvery(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	require.NoError(t, handler.Every(ctx, 1, func() error {
		if looks++; looks == 3 {
			cancel()
			return ctx.Err()
		}
		return nil
	}))
	require.Equal(t, 3, looks)
	down := errors.New("down")
	require.ErrorIs(t, handler.Every(t.Context(), 1, func() error { return down }), down)
}
