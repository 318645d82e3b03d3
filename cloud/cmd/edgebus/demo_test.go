package main

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever was set before and however often the key is pressed: what the node has in the end is not what the hub has.
func TestChangesOfTheDemoLeaveSomethingToSend(t *testing.T) {
	for has := range 101 {
		for level := range 101 {
			before := level
			for range 40 {
				level = next(level, strconv.Itoa(has))
				require.NotEqual(t, has, level)
				require.NotEqual(t, before, level)
				require.True(t, level >= 1 && level <= 100, level)
				before = level
			}
		}
	}
}
