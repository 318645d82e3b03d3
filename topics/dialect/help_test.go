// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func marshalJSON(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return raw
}
