// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/cloud/objects"
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
	Containers    []podContainer `json:"containers"`
	RestartPolicy string         `json:"restartPolicy"`
	HostNetwork   bool           `json:"hostNetwork"`
	Volumes       []struct {
		Name     string `json:"name"`
		HostPath *struct {
			Path string `json:"path"`
		} `json:"hostPath"`
	} `json:"volumes"`
}

type podContainer struct {
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

// supportedFields are the fields of brokerSpec that nodes do, or that say nothing to a node. [] stands for each entry of a list.
var supportedFields = []string{
	"brokerPodSpec", "brokerJobSpec.template.spec", "brokerJobSpec.backoffLimit", "brokerJobSpec.template.metadata", "brokerJobSpec.parallelism",
	"brokerJobSpec.completions", "brokerJobSpec.ttlSecondsAfterFinished",
}

var supportedPodFields = []string{
	"restartPolicy", "hostNetwork", "volumes[].name", "volumes[].hostPath.path", "volumes[].hostPath.type", "dnsPolicy", "terminationGracePeriodSeconds",
	"containers[].name", "containers[].image", "containers[].command", "containers[].args", "containers[].env[].name", "containers[].env[].value",
	"containers[].ports[].name", "containers[].ports[].containerPort", "containers[].ports[].hostPort", "containers[].ports[].protocol",
	"containers[].volumeMounts[].name", "containers[].volumeMounts[].mountPath", "containers[].volumeMounts[].readOnly",
	"containers[].securityContext.privileged", "containers[].securityContext.runAsUser", "containers[].workingDir", "containers[].imagePullPolicy",
	"containers[].resources", // the request of the device itself is among them; podman needs none
}

func parseBrokerSpec(raw json.RawMessage) (b brokerSpec, pod podSpec, err error) {
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

// UnsupportedFields names the fields of a brokerSpec that nodes don't do. An error says that nothing of it can be done.
func UnsupportedFields(raw json.RawMessage) (fields []string, err error) {
	if _, _, err := parseBrokerSpec(raw); err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	all := slices.Clone(supportedFields)
	for _, pod := range []string{"brokerPodSpec.", "brokerJobSpec.template.spec."} {
		for _, f := range supportedPodFields {
			all = append(all, pod+f)
		}
	}
	left := make(map[string]bool)
	collectUnsupported(tree, "", all, left)
	for f := range left {
		fields = append(fields, f)
	}
	slices.Sort(fields)
	return fields, nil
}

func collectUnsupported(v any, at string, all []string, left map[string]bool) {
	leads := slices.ContainsFunc(all, func(f string) bool { return strings.HasPrefix(f, at+".") || strings.HasPrefix(f, at+"[]") })
	switch v := v.(type) {
	case map[string]any:
		if leads || at == "" {
			for key, below := range v {
				collectUnsupported(below, strings.TrimPrefix(at+"."+key, "."), all, left)
			}
			return
		}
	case []any:
		if leads {
			for _, below := range v {
				collectUnsupported(below, at+"[]", all, left)
			}
			return
		}
	}
	if !slices.Contains(all, at) {
		left[at] = true
	}
}

var (
	envPattern    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	notEnvPattern = regexp.MustCompile(`[^A-Za-z0-9_]`)
)

// BrokerApplication is what a node runs for an Instance that it uses: quadlet units, one for each container. It gets the properties of the
// Configuration and those that the node itself reports as variables, each once more with the hash of the Instance's short name, and
// the files and devices of the host that the node itself reports.
func BrokerApplication(c *resource.Configuration, i *resource.Instance, s Sighting) (app resource.Application, err error) {
	b, pod, err := parseBrokerSpec(c.Spec.BrokerSpec)
	if err != nil {
		return app, err
	}
	name := brokerApplicationName(i.Spec.ConfigurationName, i.Metadata.Name)
	app = resource.Application{Name: name, AppType: resource.AppQuadlet, EnvVars: brokerEnvironment(i, brokerProperties(c, s.Device), s.Node)}
	for n, one := range pod.Containers {
		unit := name
		if n > 0 {
			unit = fmt.Sprintf("%s-%d", name, n)
		}
		app.Files = append(app.Files, resource.InlineFile{Path: unit + ".container", Content: quadletUnit(b, pod, one, i.Metadata.Name, s.Device)})
	}
	return app, nil
}

// brokerApplicationName is the name of the broker of an Instance, on whichever node.
func brokerApplicationName(configuration, instance string) string {
	sum := sha256.Sum256([]byte(instance))
	name := strings.Trim(cleanName(configuration), "-")
	if name == "" || name[0] < 'a' {
		name = "i-" + name
	}
	return strings.TrimRight(name[:min(len(name), 40)], "-") + "-" + hex.EncodeToString(sum[:6])
}

// brokerProperties are those of a Configuration, and those that were found over them; nil: there are none.
func brokerProperties(c *resource.Configuration, found resource.DiscoveredDevice) map[string]string {
	all := maps.Clone(c.Spec.BrokerProperties)
	if all == nil && len(found.Properties) > 0 {
		all = make(map[string]string, len(found.Properties))
	}
	maps.Copy(all, found.Properties)
	return all
}

// brokerEnvironment are the variables for all containers.
func brokerEnvironment(i *resource.Instance, properties map[string]string, node string) map[string]string {
	env := make(map[string]string)
	suffix := i.Spec.ShortName[strings.LastIndex(i.Spec.ShortName, "-")+1:]
	for _, key := range slices.Sorted(maps.Keys(properties)) { // of several that come to one name it is always the same
		value := properties[key]
		name := notEnvPattern.ReplaceAllString(key, "_")
		if !envPattern.MatchString(name) || strings.ContainsAny(value, "\r\n\x00") {
			continue // no environment file can have it
		}
		env[name], env[name+"_"+strings.ToUpper(suffix)] = value, value
	}
	env["AGENT_NODE_NAME"] = node
	return env
}

// quadletUnit is the unit of a container.
func quadletUnit(b brokerSpec, pod podSpec, c podContainer, instance string, found resource.DiscoveredDevice) string {
	var t strings.Builder
	line := func(key, value string) {
		if value = unitValue(value); !strings.HasSuffix(value, `\`) { // the next line would be part of it
			fmt.Fprintf(&t, "%s=%s\n", key, value)
		}
	}
	words := func(key string, list ...string) {
		var quoted []string
		for _, w := range list {
			quoted = append(quoted, quoteUnitWord(w))
		}
		fmt.Fprintf(&t, "%s=%s\n", key, strings.Join(quoted, " "))
	}
	t.WriteString("[Unit]\n")
	line("Description", "broker of "+instance)
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
		if e.Value != nil && envPattern.MatchString(e.Name) {
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
	for _, m := range found.Mounts {
		if isPassable(m.HostPath) {
			mount(m.HostPath, m.ContainerPath, m.ReadOnly)
		}
	}
	for _, d := range found.DeviceSpecs {
		if isPassable(d.HostPath) {
			words("AddDevice", strings.TrimSuffix(d.HostPath+":"+d.ContainerPath+":"+d.Permissions, ":")) // podman takes it for a list
		}
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

// reservedDevices are the files in /dev that no discoverer passes to a container: the host's memory, processors and ports; disks, and what is
// on them; and files that anybody on the host may make, or that are others' than the container's. A container that needs one of them is
// privileged, or has a volume of it.
var reservedDevices = strings.Fields(`mem kmem port core kmsg cpu uio*
	sd[a-z]* hd[a-z]* vd[a-z]* xvd[a-z]* sg[0-9]* bsg nvme* ng[0-9]* mmcblk* md md[0-9]* md_* dm-* loop* nbd* ram[0-9]* zram* zd[0-9]* pmem*
	dax* mtd* ubi* bcache* drbd* rbd* btrfs-control
	shm mqueue hugepages fd std* pts ptmx log initctl`)

// deviceDirectories are the directories in /dev whose files may be passed. Others, such as mapper, disk, block, char and those of
// volume groups, have names of disks.
var deviceDirectories = strings.Fields("accel bus dma_heap dri dvb infiniband input serial snd usb v4l")

// isPassable says whether a discoverer may pass a path of the host to a container: a file in /dev, or one of the directories of devices
// there or what is below them.
func isPassable(host string) bool {
	below, ok := strings.CutPrefix(path.Clean(host), "/dev/")
	name, _, deeper := strings.Cut(below, "/")
	return ok && (slices.Contains(deviceDirectories, name) || !deeper && !slices.ContainsFunc(reservedDevices, func(glob string) bool {
		match, _ := path.Match(glob, name)
		return match
	}))
}

// jobRetries is how often a job that fails is started again.
func jobRetries(b brokerSpec) int {
	if b.Job.BackoffLimit == nil {
		return 6 // as in Kubernetes
	}
	return *b.Job.BackoffLimit
}

// unitValue is the value of a setting in a unit file; no specifier in it means anything.
func unitValue(text string) string {
	return strings.NewReplacer("%", "%%", "\n", " ", "\r", " ", "\x00", " ").Replace(text)
}

// quoteUnitWord is a word of a value that is a list of words; no variable or blank in it means anything.
func quoteUnitWord(word string) string {
	word = unitValue(word)
	if word != "" && !strings.ContainsAny(word, " \t\"'\\$;#") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", "$$").Replace(word) + `"`
}

// brokerState is how a broker is, on one node or on all that use its Instance. Of two states the greater one is the worse one.
type brokerState int

const (
	brokerRuns brokerState = iota
	brokerUnknown
	brokerWaits
	brokerFails
)

// brokerReasons are the status and the reason of a BrokerReady by the state.
var brokerReasons = [...]struct{ status, reason string }{
	brokerRuns: {"True", reasonRunning}, brokerUnknown: {"Unknown", reasonNodeOffline}, brokerWaits: {"False", reasonNotStarted}, brokerFails: {"False", reasonFailing},
}

// The reasons of BrokerReady.
const (
	reasonRunning     = "Running"
	reasonNodeOffline = "NodeOffline"
	reasonNotStarted  = "NotStarted"
	reasonNotUsed     = "NotUsed"
	reasonFailing     = "Failing"
	reasonInvalid     = "Invalid"
)

// condition are the status and the reason of a BrokerReady.
func (b brokerState) condition() (status, reason string) {
	return brokerReasons[b].status, brokerReasons[b].reason
}

func brokerStateOf(c resource.Condition) brokerState {
	switch c.Reason {
	case reasonRunning:
		return brokerRuns
	case reasonNodeOffline:
		return brokerUnknown
	case reasonNotStarted, reasonNotUsed:
		return brokerWaits
	}
	return brokerFails
}

// maxPartMessage bounds what a condition says of one node or Instance, in bytes.
const maxPartMessage = 400

// brokerOnNode is how a broker is on a node that uses its Instance, and why it doesn't run.
func brokerOnNode(h HostState, application string) (state brokerState, why string) {
	app, reported := h.Applications[application]
	switch {
	case h.LeftOut[application] != "":
		state, why = brokerFails, "it is left out of the node's spec: "+h.LeftOut[application]
	case reported && (app.Status == "Running" || app.Status == "Completed"):
		state = brokerRuns
	case reported && app.Status == "Error":
		state, why = brokerFails, cmp.Or(app.Message, "it has failed")
	case reported:
		state, why = brokerWaits, strings.TrimSuffix(app.Status+": "+app.Message, ": ")
	case h.Problem != "":
		state, why = brokerFails, h.Problem
	case !h.Agent:
		state, why = brokerWaits, "no agent has reported from the node"
	default:
		state, why = brokerWaits, "the node's agent has not reported it yet"
	}
	if !h.Offline.IsZero() && state != brokerFails {
		state, why = brokerUnknown, "the node is offline since "+resource.FormatTime(h.Offline)
	}
	return state, why
}

// instanceBrokerCondition is the condition BrokerReady of an Instance: how its broker is on the nodes that use it. Those where it fails are named first.
func instanceBrokerCondition(c *resource.Configuration, i *resource.Instance, hosts map[string]HostState) resource.Condition {
	out := resource.Condition{Type: resource.ConditionBrokerReady, Status: "False", ObservedGeneration: i.Metadata.Generation}
	if _, _, err := parseBrokerSpec(c.Spec.BrokerSpec); err != nil {
		out.Reason, out.Message = reasonInvalid, err.Error()
		return out
	}
	nodes := nodesUsing(i)
	if len(nodes) == 0 {
		out.Reason, out.Message = reasonNotUsed, "no node uses it"
		return out
	}
	var parts brokerParts
	for _, node := range nodes {
		state, why := brokerOnNode(hosts[node], brokerApplicationName(i.Spec.ConfigurationName, i.Metadata.Name))
		parts = append(parts, brokerPart{state, node, why})
	}
	worst := parts.worst()
	out.Message = parts.text()
	if out.Status, out.Reason = worst.condition(); worst == brokerRuns {
		out.Message = "it runs, or has completed, on " + objects.JoinFirst(nodes)
	}
	return out
}

// brokerPart is what a condition says of a broker on one node, or of those of one Instance.
type brokerPart struct {
	state         brokerState
	name, message string
}

type brokerParts []brokerPart

func (p brokerParts) worst() (state brokerState) {
	for _, one := range p {
		state = max(state, one.state)
	}
	return state
}

// text names the parts that don't run, the worst first.
func (p brokerParts) text() string {
	const most = 5
	list := slices.DeleteFunc(slices.Clone(p), func(one brokerPart) bool { return one.state == brokerRuns })
	slices.SortStableFunc(list, func(a, b brokerPart) int { return cmp.Compare(b.state, a.state) })
	var texts []string
	for _, one := range list[:min(len(list), most)] {
		texts = append(texts, one.name+": "+objects.ClipText(one.message, maxPartMessage))
	}
	if len(list) > most {
		texts = append(texts, fmt.Sprintf("and %d more", len(list)-most))
	}
	return strings.Join(texts, "; ")
}

// configurationBrokerCondition is the condition BrokerReady of a Configuration, of those of its Instances by name.
func configurationBrokerCondition(of resource.Meta, instances map[string]resource.Condition) resource.Condition {
	out := resource.Condition{Type: resource.ConditionBrokerReady, ObservedGeneration: of.Generation}
	var parts brokerParts
	for _, name := range slices.Sorted(maps.Keys(instances)) {
		parts = append(parts, brokerPart{brokerStateOf(instances[name]), name, instances[name].Message})
	}
	worst, n := parts.worst(), 0
	for _, one := range parts {
		if one.state == worst {
			n++
		}
	}
	out.Status, out.Reason = worst.condition()
	switch {
	case n == 0:
		out.Reason, out.Message = "NoInstances", "no device is found"
		return out
	case worst == brokerRuns:
		out.Message = fmt.Sprintf("the brokers of all %d Instances run, or have completed", n)
		return out
	}
	are := map[brokerState]string{brokerUnknown: "are on nodes that are offline", brokerWaits: "have not started", brokerFails: "fail"}[worst]
	out.Message = fmt.Sprintf("the brokers of %d of %d Instances %s: %s", n, len(parts), are, parts.text())
	return out
}
