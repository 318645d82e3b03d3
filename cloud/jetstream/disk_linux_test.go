// SPDX-License-Identifier: Apache-2.0

package jetstream

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// A server takes a part of what is free when it starts. What else comes onto its disk then is to be known, and keeps no hub from serving.
func TestADiskThatGetsFullerKeepsNoHubFromServing(t *testing.T) {
	dir := t.TempDir()
	_, size, known := diskBytes(dir)
	require.True(t, known)
	for name, most := range map[string]uint64{"a disk that had room": size, "a limit that is larger than the disk": size + 1} {
		v := serverState{Version: MinVersion + ".0", Payload: MinPayload, remote: netip.MustParseAddr("127.0.0.1")}
		require.NoError(t, json.Unmarshal(fmt.Appendf(nil, `{"jetstream": {"config": {"sync_always": true, "max_storage": %d, "store_dir": %q}}}`, most, dir), &v))
		r := Report{}
		v.judge(&r)
		require.Empty(t, r.Wrong, name)
		if most > size {
			require.Len(t, r.Weak, 1, name)
		} else {
			require.Empty(t, r.Weak, name)
			require.Len(t, r.Notes, 1, name)
		}
	}
}
