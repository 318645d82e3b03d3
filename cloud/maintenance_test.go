package cloud

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
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
