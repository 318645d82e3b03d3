// SPDX-License-Identifier: Apache-2.0

package uns

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/broker/views/viewtest"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestWhatANamespaceHasAsBareValues(t *testing.T) {
	viewtest.Run(t, viewtest.Options{Files: "testdata/*.txt", New: func() views.View {
		return New(Options{Levels: DefaultLevels(), Origin: "view-uns/n1"})
	}})
}

func TestWhatANamespaceHasAsJSON(t *testing.T) {
	viewtest.Run(t, viewtest.Options{Files: "testdata/json/*.txt", New: func() views.View {
		return New(Options{Levels: DefaultLevels(), Origin: "view-uns/n1", JSON: true})
	}})
}

func device(name, node string, made int, labels map[string]string) resource.Device {
	at := time.Unix(int64(made), 0)
	return resource.Device{Metadata: resource.Meta{Name: name, CreationTimestamp: &at, Labels: labels}, Spec: resource.DeviceSpec{NodeName: node}}
}

func TestAPathHasTheLabelsOfTheDeviceBeforeThoseOfItsNode(t *testing.T) {
	l := DefaultLevels()
	d := device("lamp", "n1", 0, map[string]string{"area": "hall", "cell": "a/b#"})
	require.Equal(t, "uns/acme/hall/a_b_/lamp", l.Path(map[string]string{"enterprise": "acme", "area": "yard"}, &d))
	d.Metadata.Labels["device"] = "L1"
	require.Equal(t, "uns/hall/a_b_/L1", l.Path(nil, &d))
	l = PathLevels{Root: "plant", Labels: []string{"topology.kubernetes.io/zone"}, Name: "tag"}
	require.Equal(t, "plant/z1/lamp", l.Path(map[string]string{"topology.kubernetes.io/zone": "z1"}, &d))
}

func TestTheCheckTellsMissingLabelsAndDevicesOfOnePath(t *testing.T) {
	l := PathLevels{Root: "uns", Labels: []string{"site", "area"}, Name: "device"}
	labels := func(node string) map[string]string { return map[string]map[string]string{"n1": {"site": "s1"}}[node] }
	require.Equal(t, []Finding{
		{"default/c", "uns/s1/hall/pump", "the path is that of the Device default/b, which was made earlier: this one isn't shown"},
		{"default/d", "uns/d", "neither the Device nor its node has the label site, nor area"},
	}, l.Check([]resource.Device{
		device("a", "n1", 1, map[string]string{"area": "hall"}),
		device("c", "n1", 3, map[string]string{"area": "hall", "device": "pump"}),
		device("b", "n1", 2, map[string]string{"area": "hall", "device": "pump"}),
		device("d", "n2", 4, nil),
	}, labels))
	require.Empty(t, l.Check(nil, labels))
}
