package discovery_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/discovery"
	"github.com/edgebus/edgebus/topics/resource"
)

func found(t testing.TB, spec string) *resource.Instance {
	i := &resource.Instance{Metadata: resource.Meta{Name: "cams-00", Namespace: "default"}}
	require.NoError(t, json.Unmarshal([]byte(spec), &i.Spec))
	i.Spec.ConfigurationName, i.Spec.ShortName = "cams", "cams-8120fe"
	return i
}

func TestBrokerUnits(t *testing.T) {
	i := found(t, `{"brokerProperties":{"A.B":"1"},"mounts":[{"containerPath":"/c","hostPath":"/h","readOnly":true}],"deviceSpecs":[{"containerPath":"/dev/c","hostPath":"/dev/h"}]}`)
	app, err := discovery.Application([]byte(`{"brokerPodSpec":{"hostNetwork":true,"restartPolicy":"OnFailure","volumes":[{"name":"v","hostPath":{"path":"/data"}}],
		"containers":[{"name":"a","image":"x:1","command":["sh","-c"],"args":["echo $A 100%"],"env":[{"name":"K","value":"v w"}],"volumeMounts":[{"name":"v","mountPath":"/d"}],
		"securityContext":{"privileged":true,"runAsUser":7},"workingDir":"/w"},{"name":"b","image":"y"}]}}`), i, "n1")
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
	app, err = discovery.Application([]byte(`{"brokerJobSpec":{"backoffLimit":2,"template":{"spec":{"containers":[{"name":"a","image":"x"}]}}}}`), i, "n1")
	require.NoError(t, err)
	require.Contains(t, app.Files[0].Content, "StartLimitIntervalSec=infinity\nStartLimitBurst=3\n")
	require.Contains(t, app.Files[0].Content, "Restart=on-failure\n")
	require.NotContains(t, app.Files[0].Content, "[Install]")
	for text, why := range map[string]string{`{}`: "one of brokerPodSpec and brokerJobSpec", `{"brokerPodSpec":{}}`: "has no containers", `{"brokerPodSpec":{"containers":[{"image":"a\nExec=b"}]}}`: "needs an image"} {
		_, err := discovery.Application([]byte(text), i, "n1")
		require.ErrorContains(t, err, why)
	}
}

// The names are those of Akri's own documentation: two devices of debugEcho.
func TestShortName(t *testing.T) {
	require.Equal(t, "akri-debug-echo-foo-8120fe", discovery.ShortName("akri-debug-echo-foo", "foo0", "n1", true))
	require.Equal(t, "akri-debug-echo-foo-a19705", discovery.ShortName("akri-debug-echo-foo", "foo1", "n2", true))
	require.NotEqual(t, discovery.ShortName("c", "usb", "n1", false), discovery.ShortName("c", "usb", "n2", false))
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
		i := found(t, `{}`)
		i.Spec.BrokerProperties = map[string]string{arg: env}
		app, err := discovery.Application(raw, i, "n1")
		require.NoError(t, err)
		for _, line := range strings.Split(strings.TrimSpace(app.Files[0].Content), "\n") {
			key, _, _ := strings.Cut(line, "=")
			require.Contains(t, []string{"[Unit]", "Description", "[Container]", "Image", "Exec", "Environment", "Volume", "WorkingDir", "[Service]", "Restart", "[Install]", "WantedBy"}, key)
		}
		require.NotContains(t, app.Files[0].Content, "\r")
		require.NoError(t, resource.Node{Metadata: resource.Meta{Name: "n1"}, Spec: resource.NodeSpec{Applications: []resource.Application{app}}}.Validate())
	})
}
