// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestTheNewestEntriesAreReadFirstOverFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "audit-2026-01-02T03-04-05.000.log"), []byte(`{"object":"oldest"}`+"\n"+`{"object":"older"}`+"\n"), 0o600))
	l, err := New(Options{File: filepath.Join(dir, "audit.log"), Size: 1, Files: 2, Log: zerolog.Nop()})
	require.NoError(t, err)
	for i := range 3 {
		l.Add(Entry{User: fmt.Sprint("Ann", i), Object: "x<script>", Answer: OK})
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, l.Run(ctx))
	objects := func(most int, words ...string) (all []string) {
		list, err := l.Recent(most, words)
		require.NoError(t, err)
		for _, one := range list {
			var e Entry
			require.NoError(t, json.Unmarshal(one, &e))
			all = append(all, e.User+e.Object)
		}
		return all
	}
	require.Equal(t, []string{"Ann2x<script>", "Ann1x<script>", "Ann0x<script>", "older", "oldest"}, objects(10))
	require.Equal(t, []string{"Ann2x<script>", "Ann1x<script>"}, objects(2))
	require.Equal(t, []string{"Ann1x<script>"}, objects(10, "ann1", "OK"))
	require.Empty(t, objects(10, "nobody"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "audit.log"), []byte("{\"half\n"), 0o600))
	require.Equal(t, []string{"older", "oldest"}, objects(10), "a line that was torn isn't shown")
}
