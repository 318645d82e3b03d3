// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// A condition of a generation before is none: it says nothing about what was asked for since.
func TestAConditionCountsIfItIsOfThePresentGeneration(t *testing.T) {
	for text, want := range map[string]bool{
		`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`:                                  true,
		`{"status":{"conditions":[{"type":"Other","status":"True"},{"type":"ready","status":"true"}]}}`: true,
		`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`:                                 false,
		`{"status":{"conditions":[]}}`:                                                                  false,
		`{}`:                                                                                            false,
		`{"metadata":{"generation":2},"status":{"conditions":[{"type":"Ready","status":"True","observedGeneration":1}]}}`:                        false,
		`{"metadata":{"generation":2},"status":{"conditions":[{"type":"Ready","status":"True","observedGeneration":2}]}}`:                        true,
		`{"metadata":{"generation":2},"status":{"observedGeneration":1,"conditions":[{"type":"Ready","status":"True"}]}}`:                        false,
		`{"metadata":{"generation":2},"status":{"observedGeneration":1,"conditions":[{"type":"Ready","status":"True","observedGeneration":2}]}}`: true,
	} {
		var tree map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &tree))
		require.Equal(t, want, hasCondition(tree, "Ready", "True"), text)
	}
}
