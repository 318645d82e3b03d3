// SPDX-License-Identifier: Apache-2.0

package hubdata

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestForkedDevicesKeepWhatTheyAreAndRaiseVersions(t *testing.T) {
	model := resource.DeviceModel{}
	model.Spec.Properties = []resource.Property{{Name: "a"}, {Name: "b"}}
	models := map[store.Key]resource.DeviceModel{{Kind: "DeviceModel", Namespace: "default", Name: "m"}: model}
	o := store.Object{Key: store.Key{Kind: "Device", Namespace: "default", Name: "d"}, Data: []byte(
		`{"kind":"Device","metadata":{"name":"d"},"spec":{"deviceModelRef":{"name":"m"},"desired":{"a":"1"}},"later":{"x":[1]},` +
			`"desiredMeta":{"a":{"ver":4,"ts":5,"origin":"ann"}}}`)}
	data, err := forkDevice(o, models, 1000)
	require.NoError(t, err)
	var d resource.Device
	require.NoError(t, json.Unmarshal(data, &d))
	require.Equal(t, resource.DesiredMeta{Ver: 1000<<32 | 4, TS: 5, Origin: "ann"}, d.DesiredMeta["a"])
	require.Equal(t, resource.DesiredMeta{Ver: 1000 << 32, Cleared: true}, d.DesiredMeta["b"], "it may have had a value since")
	require.Contains(t, string(data), `"later":{"x":[1]}`)
	_, err = forkDevice(store.Object{Data: []byte("{")}, models, 1)
	require.Error(t, err)
}

func TestForkedSecretsHaveANewVersion(t *testing.T) {
	of := func(data []byte) (s resource.Secret) {
		require.NoError(t, json.Unmarshal(data, &s))
		return s
	}
	was := []byte(`{"kind":"Secret","metadata":{"name":"a","uid":"12345678-9abc","generation":3,"labels":{"x":"y"}},"sealed":"AAAA"}`)
	data, err := forkSecret(store.Object{Data: was}, 1000)
	require.NoError(t, err)
	require.Equal(t, "12345678-3", of(was).Version())
	require.Equal(t, int64(1000<<32|3), of(data).Metadata.Generation)
	require.Contains(t, string(data), `"sealed":"AAAA"`)
	require.Equal(t, map[string]string{"x": "y"}, of(data).Metadata.Labels)
	data, err = forkSecret(store.Object{Data: []byte(`{"metadata":{"name":"a"},"sealed":"AAAA"}`)}, 1000)
	require.NoError(t, err)
	require.Equal(t, int64(1000<<32), of(data).Metadata.Generation)
	_, err = forkSecret(store.Object{Data: []byte(`{"metadata":{"generation":"x"}}`)}, 1)
	require.Error(t, err)
}

// dirWithSecrets makes a data directory with some Secrets, whose values its key opens.
func dirWithSecrets(t *testing.T, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	key, err := seal.Create(dir)
	require.NoError(t, err)
	withHub(t, dir, func(st *disk.Store) {
		for _, name := range names {
			of := store.Key{Kind: "Secret", Namespace: "default", Name: name}
			sealed, err := key.Seal([]byte("{}"), of.String())
			require.NoError(t, err)
			data, err := json.Marshal(map[string]any{"metadata": map[string]string{"name": name}, "sealed": sealed})
			require.NoError(t, err)
			_, err = st.Create(t.Context(), store.Object{Key: of, Data: data})
			require.NoError(t, err)
		}
	})
	return dir
}

func withHub(t *testing.T, dir string, do func(*disk.Store)) {
	t.Helper()
	st, err := disk.Open(disk.Options{Path: filepath.Join(dir, LogDir), Log: zerolog.Nop()})
	require.NoError(t, err)
	do(st)
	require.NoError(t, st.Close())
}

// What the hub refuses at its start, check calls damage, in the same words, and so does the check of a backup.
func TestAKeyThatDoesNotOpenTheSecretsIsDamage(t *testing.T) {
	for name, c := range map[string]struct {
		secrets []string
		spoil   func(t *testing.T, key string)
		says    string // nothing: all is well
	}{
		"well":            {[]string{"a", "b"}, func(*testing.T, string) {}, ""},
		"nothing to open": {nil, func(t *testing.T, key string) { require.NoError(t, os.Remove(key)) }, ""},
		"missing": {
			[]string{"a"},
			func(t *testing.T, key string) { require.NoError(t, os.Remove(key)) },
			"secrets.key is missing, and Secret default/a (1 of 1) can't be opened: take it from a backup",
		},
		"garbage": {
			[]string{"a"},
			func(t *testing.T, key string) { require.NoError(t, os.WriteFile(key, []byte("junk"), 0o600)) },
			"secrets.key is not a key of Secrets, or is damaged",
		},
		"another hub's": {[]string{"a", "b", "c", "d", "e", "f"}, func(t *testing.T, key string) {
			require.NoError(t, os.Remove(key))
			_, err := seal.Create(filepath.Dir(key))
			require.NoError(t, err)
		}, "Secret default/f (6 of 6) can't be opened with secrets.key: it is another hub's"},
		"open to others": {
			[]string{"a"},
			func(t *testing.T, key string) { require.NoError(t, os.Chmod(key, 0o644)) },
			"secrets.key can be read by others",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := dirWithSecrets(t, c.secrets...)
			c.spoil(t, filepath.Join(dir, seal.FileName))
			var found error
			for _, part := range surveyData(dir) {
				if part.Name == seal.FileName {
					found = part.Err
				} else {
					require.NoError(t, part.Err, part.Name)
				}
			}
			related := Program().CheckRelated(dir)
			var refused error
			withHub(t, dir, func(st *disk.Store) { _, refused = openSealKey(dir, st) })
			for _, err := range []error{found, related, refused} {
				if c.says == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.says)
				}
			}
			if c.says != "" {
				require.ErrorContains(t, refused, dir)
			}
		})
	}
}

// One that is damaged among those that are well is named alone.
func TestASecretThatDoesNotOpenIsNamed(t *testing.T) {
	dir := dirWithSecrets(t, "a", "b", "c")
	withHub(t, dir, func(st *disk.Store) {
		o, err := st.Get(t.Context(), store.Key{Kind: "Secret", Namespace: "default", Name: "a"})
		require.NoError(t, err)
		o.Name = "b" // sealed for another name
		_, err = st.Update(t.Context(), o, 0)
		require.NoError(t, err)
	})
	require.ErrorContains(t, Program().CheckRelated(dir), "Secret default/b (1 of 3) can't be opened with secrets.key")
}

// A program that is older than the log says which version it needs; the log isn't damaged.
func TestACheckByAnOlderProgramSaysWhichVersionTheLogNeeds(t *testing.T) {
	dir := t.TempDir()
	newer := LogOptions(dir)
	newer.Version++
	records, err := journal.Open(newer)
	require.NoError(t, err)
	require.NoError(t, journal.SetVersion(records, newer.Version))
	require.NoError(t, records.Close())
	var out bytes.Buffer
	code, _ := Program().Main([]string{"check", dir}, &out, &out)
	require.Equal(t, 3, code, out.String())
	require.NotContains(t, out.String(), "DAMAGED")
	require.Contains(t, out.String(), fmt.Sprintf("upgrade it to one that knows version %d", newer.Version))
}
