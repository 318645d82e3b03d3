package discovery

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// brokerSpec is a Configuration's brokerSpec.
type brokerSpec struct {
	Pod *podSpec `json:"brokerPodSpec"`
	Job *struct {
		BackoffLimit *int `json:"backoffLimit"`
		Template     struct {
			Spec podSpec `json:"spec"`
		} `json:"template"`
	} `json:"brokerJobSpec"`
}

// podSpec is what podman can do of a Kubernetes PodSpec.
type podSpec struct {
	Containers    []container `json:"containers"`
	RestartPolicy string      `json:"restartPolicy"`
	HostNetwork   bool        `json:"hostNetwork"`
	Volumes       []struct {
		Name     string `json:"name"`
		HostPath *struct {
			Path string `json:"path"`
		} `json:"hostPath"`
	} `json:"volumes"`
}

type container struct {
	Name    string   `json:"name"`
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
	Env     []struct {
		Name  string  `json:"name"`
		Value *string `json:"value"`
	} `json:"env"`
	Ports []struct {
		ContainerPort int    `json:"containerPort"`
		HostPort      int    `json:"hostPort"`
		Protocol      string `json:"protocol"`
	} `json:"ports"`
	VolumeMounts []struct {
		Name      string `json:"name"`
		MountPath string `json:"mountPath"`
		ReadOnly  bool   `json:"readOnly"`
	} `json:"volumeMounts"`
	SecurityContext struct {
		Privileged bool   `json:"privileged"`
		RunAsUser  *int64 `json:"runAsUser"`
	} `json:"securityContext"`
	WorkingDir string `json:"workingDir"`
}

// supported are the fields of brokerSpec that nodes do, or that say nothing to a node. [] stands for each entry of a list.
var supported = []string{
	"brokerPodSpec", "brokerJobSpec.template.spec", "brokerJobSpec.backoffLimit", "brokerJobSpec.template.metadata", "brokerJobSpec.parallelism",
	"brokerJobSpec.completions", "brokerJobSpec.ttlSecondsAfterFinished",
}

var supportedOfPod = []string{
	"restartPolicy", "hostNetwork", "volumes[].name", "volumes[].hostPath.path", "volumes[].hostPath.type", "dnsPolicy", "terminationGracePeriodSeconds",
	"containers[].name", "containers[].image", "containers[].command", "containers[].args", "containers[].env[].name", "containers[].env[].value",
	"containers[].ports[].name", "containers[].ports[].containerPort", "containers[].ports[].hostPort", "containers[].ports[].protocol",
	"containers[].volumeMounts[].name", "containers[].volumeMounts[].mountPath", "containers[].volumeMounts[].readOnly",
	"containers[].securityContext.privileged", "containers[].securityContext.runAsUser", "containers[].workingDir", "containers[].imagePullPolicy",
	"containers[].resources", // the request of the device itself is among them; podman needs none
}

func parseBroker(raw json.RawMessage) (b brokerSpec, pod podSpec, err error) {
	if err := json.Unmarshal(raw, &b); err != nil {
		return b, pod, fmt.Errorf("spec.brokerSpec: %w", err)
	}
	switch {
	case (b.Pod == nil) == (b.Job == nil):
		return b, pod, fmt.Errorf("spec.brokerSpec: must have one of brokerPodSpec and brokerJobSpec")
	case b.Pod != nil:
		pod = *b.Pod
	default:
		pod = b.Job.Template.Spec
	}
	if len(pod.Containers) == 0 {
		return b, pod, fmt.Errorf("spec.brokerSpec: has no containers")
	}
	for _, c := range pod.Containers {
		if c.Image == "" || strings.ContainsAny(c.Image, " \t\r\n\x00") {
			return b, pod, fmt.Errorf("spec.brokerSpec: the container %q needs an image", c.Name)
		}
	}
	return b, pod, nil
}

// Unsupported names the fields of a brokerSpec that nodes don't do. An error says that nothing of it can be done.
func Unsupported(raw json.RawMessage) (fields []string, err error) {
	if _, _, err := parseBroker(raw); err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	all := slices.Clone(supported)
	for _, pod := range []string{"brokerPodSpec.", "brokerJobSpec.template.spec."} {
		for _, f := range supportedOfPod {
			all = append(all, pod+f)
		}
	}
	left := make(map[string]bool)
	unsupported(tree, "", all, left)
	for f := range left {
		fields = append(fields, f)
	}
	slices.Sort(fields)
	return fields, nil
}

func unsupported(v any, at string, all []string, left map[string]bool) {
	leads := slices.ContainsFunc(all, func(f string) bool { return strings.HasPrefix(f, at+".") || strings.HasPrefix(f, at+"[]") })
	switch v := v.(type) {
	case map[string]any:
		if leads || at == "" {
			for key, below := range v {
				unsupported(below, strings.TrimPrefix(at+"."+key, "."), all, left)
			}
			return
		}
	case []any:
		if leads {
			for _, below := range v {
				unsupported(below, at+"[]", all, left)
			}
			return
		}
	}
	if !slices.Contains(all, at) {
		left[at] = true
	}
}

var (
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	notEnv  = regexp.MustCompile(`[^A-Za-z0-9_]`)
)

// Application is what a node runs for an Instance that it uses: quadlet units, one for each container. It gets the Instance's properties
// as variables, each once more with the hash of the Instance's short name, and what the handler says of the host's files and devices.
func Application(raw json.RawMessage, i *resource.Instance, node string) (app resource.Application, err error) {
	b, pod, err := parseBroker(raw)
	if err != nil {
		return app, err
	}
	sum := sha256.Sum256([]byte(i.Metadata.Name))
	name := strings.Trim(clean(i.Spec.ConfigurationName), "-")
	if name == "" || name[0] < 'a' {
		name = "i-" + name
	}
	name = strings.TrimRight(name[:min(len(name), 40)], "-") + "-" + hex.EncodeToString(sum[:6])
	app = resource.Application{Name: name, AppType: resource.AppQuadlet, EnvVars: environment(i, node)}
	for n, c := range pod.Containers {
		unit := name
		if n > 0 {
			unit = fmt.Sprintf("%s-%d", name, n)
		}
		app.Files = append(app.Files, resource.InlineFile{Path: unit + ".container", Content: quadlet(b, pod, c, i)})
	}
	return app, nil
}

// environment are the variables for all containers.
func environment(i *resource.Instance, node string) map[string]string {
	env := make(map[string]string)
	suffix := i.Spec.ShortName[strings.LastIndex(i.Spec.ShortName, "-")+1:]
	for key, value := range i.Spec.BrokerProperties {
		name := notEnv.ReplaceAllString(key, "_")
		if !envName.MatchString(name) || strings.ContainsAny(value, "\r\n\x00") {
			continue // no environment file can have it
		}
		env[name], env[name+"_"+strings.ToUpper(suffix)] = value, value
	}
	env["AGENT_NODE_NAME"] = node
	return env
}

// quadlet is the unit of a container.
func quadlet(b brokerSpec, pod podSpec, c container, i *resource.Instance) string {
	var t strings.Builder
	line := func(key, value string) { fmt.Fprintf(&t, "%s=%s\n", key, oneLine(value)) }
	words := func(key string, list ...string) {
		var quoted []string
		for _, w := range list {
			quoted = append(quoted, quote(w))
		}
		fmt.Fprintf(&t, "%s=%s\n", key, strings.Join(quoted, " "))
	}
	t.WriteString("[Unit]\n")
	line("Description", "broker of "+i.Metadata.Name)
	if b.Job != nil && jobRetries(b) > 0 {
		fmt.Fprintf(&t, "StartLimitIntervalSec=infinity\nStartLimitBurst=%d\n", jobRetries(b)+1)
	}
	t.WriteString("[Container]\n")
	line("Image", c.Image)
	if len(c.Command) > 0 {
		entry, _ := json.Marshal(c.Command) // texts
		words("PodmanArgs", "--entrypoint="+string(entry))
	}
	if len(c.Args) > 0 {
		words("Exec", c.Args...)
	}
	for _, e := range c.Env {
		if e.Value != nil && envName.MatchString(e.Name) {
			words("Environment", e.Name+"="+*e.Value)
		}
	}
	if pod.HostNetwork {
		line("Network", "host")
	} else {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				line("PublishPort", fmt.Sprintf("%d:%d/%s", p.HostPort, p.ContainerPort, strings.ToLower(cmp.Or(p.Protocol, "TCP"))))
			}
		}
	}
	mount := func(from, to string, readOnly bool) {
		if readOnly {
			to += ":ro"
		}
		line("Volume", from+":"+to)
	}
	for _, m := range c.VolumeMounts {
		for _, v := range pod.Volumes {
			if v.Name == m.Name && v.HostPath != nil {
				mount(v.HostPath.Path, m.MountPath, m.ReadOnly)
			}
		}
	}
	// What a discoverer reports is no reason to give a container a part of the host: device files only, and mounts of /dev.
	for _, m := range i.Spec.Mounts {
		if ofDevices(m.HostPath) {
			mount(m.HostPath, m.ContainerPath, m.ReadOnly)
		}
	}
	for _, d := range i.Spec.DeviceSpecs {
		if !ofDevices(d.HostPath) {
			continue
		}
		line("AddDevice", strings.TrimSuffix(d.HostPath+":"+d.ContainerPath+":"+d.Permissions, ":"))
	}
	if c.SecurityContext.Privileged {
		line("PodmanArgs", "--privileged")
	}
	if u := c.SecurityContext.RunAsUser; u != nil {
		line("User", strconv.FormatInt(*u, 10))
	}
	if c.WorkingDir != "" {
		line("WorkingDir", c.WorkingDir)
	}
	t.WriteString("[Service]\n")
	switch restart := map[string]string{"Never": "no", "OnFailure": "on-failure"}[pod.RestartPolicy]; {
	case b.Job == nil:
		line("Restart", cmp.Or(restart, "always"))
		t.WriteString("[Install]\nWantedBy=multi-user.target\n")
	case jobRetries(b) > 0: // it is started with the update that brings it, and not with the host
		t.WriteString("Restart=on-failure\nRestartSec=10\n")
	default:
		t.WriteString("Restart=no\n")
	}
	return t.String()
}

// ofDevices says whether a path of the host is below /dev.
func ofDevices(host string) bool { return strings.HasPrefix(path.Clean(host), "/dev/") }

// jobRetries is how often a job that fails is started again.
func jobRetries(b brokerSpec) int {
	if b.Job.BackoffLimit == nil {
		return 6 // as in Kubernetes
	}
	return *b.Job.BackoffLimit
}

// oneLine is the value of a setting in a unit file; no specifier in it means anything.
func oneLine(text string) string {
	return strings.NewReplacer("%", "%%", "\n", " ", "\r", " ", "\x00", " ").Replace(text)
}

// quote is a word of a value that is a list of words; no variable or blank in it means anything.
func quote(word string) string {
	word = oneLine(word)
	if word != "" && !strings.ContainsAny(word, " \t\"'\\$;#") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", "$$").Replace(word) + `"`
}
