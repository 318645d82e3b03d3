// SPDX-License-Identifier: Apache-2.0

package discovery_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/discovery"
	"github.com/edgebus/edgebus/topics/resource"
)

// renderBroker is what n1 runs for a device that it sees.
func renderBroker(t testing.TB, spec, device string) (resource.Application, error) {
	i := &resource.Instance{Metadata: resource.Meta{Name: "cams-00", Namespace: "default"}}
	i.Spec.ConfigurationName, i.Spec.ShortName = "cams", "cams-8120fe"
	s := discovery.Sighting{Node: "n1"}
	require.NoError(t, json.Unmarshal([]byte(device), &s.Device))
	c := &resource.Configuration{Spec: resource.ConfigurationSpec{BrokerSpec: []byte(spec), BrokerProperties: map[string]string{"A.B": "0"}}}
	return discovery.BrokerApplication(c, i, s)
}

func TestBrokerUnits(t *testing.T) {
	const device = `{"properties":{"A.B":"1"},"mounts":[{"containerPath":"/c","hostPath":"/h","readOnly":true}],"deviceSpecs":[{"containerPath":"/dev/c","hostPath":"/dev/h"}]}`
	app, err := renderBroker(t, `{"brokerPodSpec":{"hostNetwork":true,"restartPolicy":"OnFailure","volumes":[{"name":"v","hostPath":{"path":"/data"}}],
		"containers":[{"name":"a","image":"x:1","command":["sh","-c"],"args":["echo $A 100%"],"env":[{"name":"K","value":"v w"}],"volumeMounts":[{"name":"v","mountPath":"/d"}],
		"securityContext":{"privileged":true,"runAsUser":7},"workingDir":"/w"},{"name":"b","image":"y"}]}}`, device)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"A_B": "1", "A_B_8120FE": "1", "AGENT_NODE_NAME": "n1"}, app.EnvVars)
	require.Len(t, app.Files, 2)
	require.Equal(t, `[Unit]
Description=broker of cams-00
[Container]
Image=x:1
PodmanArgs="--entrypoint=[\"sh\",\"-c\"]"
Exec="echo $$A 100%%"
Environment="K=v w"
Network=host
Volume=/data:/d
AddDevice=/dev/h:/dev/c
PodmanArgs=--privileged
User=7
WorkingDir=/w
[Service]
Restart=on-failure
[Install]
WantedBy=multi-user.target
`, app.Files[0].Content)

	// A job is started once: nothing starts it with the host.
	app, err = renderBroker(t, `{"brokerJobSpec":{"backoffLimit":2,"template":{"spec":{"containers":[{"name":"a","image":"x"}]}}}}`, device)
	require.NoError(t, err)
	require.Contains(t, app.Files[0].Content, "StartLimitIntervalSec=infinity\nStartLimitBurst=3\n")
	require.Contains(t, app.Files[0].Content, "Restart=on-failure\n")
	require.NotContains(t, app.Files[0].Content, "[Install]")
	for text, why := range map[string]string{`{}`: "one of brokerPodSpec and brokerJobSpec", `{"brokerPodSpec":{}}`: "has no containers", `{"brokerPodSpec":{"containers":[{"image":"a\nExec=b"}]}}`: "needs an image"} {
		_, err := renderBroker(t, text, device)
		require.ErrorContains(t, err, why)
	}
}

// What a discoverer reports gives a container devices and nothing with which it has the host, even if the container is privileged.
func TestBrokersAreGivenDevicesAlone(t *testing.T) {
	unit := func(host string) string {
		device, err := json.Marshal(resource.DiscoveredDevice{
			Mounts:      []resource.InstanceMount{{HostPath: host, ContainerPath: "/m"}},
			DeviceSpecs: []resource.InstanceDevice{{HostPath: host, ContainerPath: "/d", Permissions: "rw"}},
		})
		require.NoError(t, err)
		app, err := renderBroker(t, `{"brokerPodSpec":{"containers":[{"name":"a","image":"x","securityContext":{"privileged":true}}]}}`, string(device))
		require.NoError(t, err)
		return app.Files[0].Content
	}
	for _, host := range []string{
		"/dev/video0", "/dev/ttyUSB0", "/dev/ttyS1", "/dev/hidraw3", "/dev/i2c-1", "/dev/spidev0.0", "/dev/gpiochip0", "/dev/media0", "/dev/nvidia0", "/dev/mei0",
		"/dev/bus/usb/001/002", "/dev/snd", "/dev/snd/pcmC0D0p", "/dev/dri/renderD128", "/dev/input/event0", "/dev/serial/by-id/usb-x", "/dev/v4l/by-path/x",
	} {
		require.Contains(t, unit(host), "Volume="+host+":/m\nAddDevice="+host+":/d:rw\n")
	}
	for _, host := range []string{
		"/", "/etc", "/dev", "/dev/", "/devices", "/dev/../etc", "/dev/snd/../mem", "/dev/mem", "/dev/kmem", "/dev/port", "/dev/core", "/dev/cpu", "/dev/cpu/0/msr", "/dev/sda", "/dev/sdb1",
		"/dev/nvme0n1p1", "/dev/mmcblk0", "/dev/vda", "/dev/xvda", "/dev/dm-0", "/dev/md127", "/dev/md/raid", "/dev/sg0", "/dev/bsg/0:0:0:0", "/dev/loop0", "/dev/loop-control",
		"/dev/mapper/root", "/dev/disk/by-id/x", "/dev/block/8:0", "/dev/char/1:1", "/dev/vg0/root", "/dev/shm", "/dev/shm/x", "/dev/mqueue/x", "/dev/fd/3", "/dev/stdin",
	} {
		require.NotContains(t, unit(host), ":/m", host)
		require.NotContains(t, unit(host), ":/d", host)
	}
	require.Contains(t, unit("/dev/snd/a /dev/sda"), "AddDevice=\"/dev/snd/a /dev/sda:/d:rw\"\n", "one device with a blank in its name, not two")
}

// Of properties that come to the same variable always the same one counts, so that nothing changes on the node.
func TestVariablesAreTheSameEachTime(t *testing.T) {
	for range 100 {
		app, err := renderBroker(t, `{"brokerPodSpec":{"containers":[{"image":"x"}]}}`, `{"properties":{"A.B":"1","A_B":"2","A-B":"3"}}`)
		require.NoError(t, err)
		require.Equal(t, "2", app.EnvVars["A_B"])
	}
}

// The names are those of Akri's own documentation: two devices of debugEcho.
func TestShortName(t *testing.T) {
	require.Equal(t, "akri-debug-echo-foo-8120fe", discovery.InstanceShortName("akri-debug-echo-foo", "foo0", "n1", true))
	require.Equal(t, "akri-debug-echo-foo-a19705", discovery.InstanceShortName("akri-debug-echo-foo", "foo1", "n2", true))
	require.NotEqual(t, discovery.InstanceShortName("c", "usb", "n1", false), discovery.InstanceShortName("c", "usb", "n2", false))
}

// Whatever texts a Configuration and a handler have, a unit has the lines that it is to have, and no other.
func FuzzBrokerUnit(f *testing.F) {
	f.Add("x\nExecStartPre=/bin/evil", "a b\"\\", "/dev/x")
	f.Fuzz(func(t *testing.T, arg, env, path string) {
		raw, err := json.Marshal(map[string]any{"brokerPodSpec": map[string]any{
			"volumes":    []any{map[string]any{"name": "v", "hostPath": map[string]any{"path": path}}},
			"containers": []any{map[string]any{"name": "c", "image": "x", "args": []string{arg}, "workingDir": path, "env": []any{map[string]any{"name": "K", "value": env}}, "volumeMounts": []any{map[string]any{"name": "v", "mountPath": path}}}},
		}})
		require.NoError(t, err)
		device, err := json.Marshal(resource.DiscoveredDevice{Properties: map[string]string{arg: env}})
		require.NoError(t, err)
		app, err := renderBroker(t, string(raw), string(device))
		require.NoError(t, err)
		for _, line := range strings.Split(strings.TrimSpace(app.Files[0].Content), "\n") {
			key, _, _ := strings.Cut(line, "=")
			require.Contains(t, []string{"[Unit]", "Description", "[Container]", "Image", "Exec", "Environment", "Volume", "WorkingDir", "[Service]", "Restart", "[Install]", "WantedBy"}, key)
		}
		require.NotContains(t, app.Files[0].Content, "\r")
		require.NoError(t, resource.Node{Metadata: resource.Meta{Name: "n1"}, Spec: resource.NodeSpec{Applications: []resource.Application{app}}}.Validate())
	})
}

// A path that a handler or a user made up to end in a backslash doesn't take the next line of the unit for itself.
func TestNoLineOfAUnitGoesOnInTheNext(t *testing.T) {
	app, err := renderBroker(t, `{"brokerPodSpec":{"volumes":[{"name":"v","hostPath":{"path":"/data"}}],
		"containers":[{"name":"a","image":"x:1","volumeMounts":[{"name":"v","mountPath":"/d\\"}],"securityContext":{"runAsUser":7},"workingDir":"/w\\"}]}}`,
		`{"mounts":[{"containerPath":"/c\\","hostPath":"/dev/h"},{"containerPath":"/ok","hostPath":"/dev/h"}],"deviceSpecs":[{"containerPath":"/dev/c\\","hostPath":"/dev/h"}]}`)
	require.NoError(t, err)
	text := app.Files[0].Content
	require.NotContains(t, text, "\\\n")
	require.Contains(t, text, "Volume=/dev/h:/ok\n")
	require.Contains(t, text, "\nUser=7\n")
}
