// SPDX-License-Identifier: Apache-2.0

// Package chart tries the Helm chart of the hub with helm itself, and holds what it makes against the types of the Kubernetes API.
package chart

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const chartDir = "../../../configs/deploy/helm/edgebus-hub"

// fullValues has everything that a user can switch on.
const fullValues = `
address: [hub.example.org, 192.0.2.7]
settings:
  auth:
    users: [{name: ann, role: operator, nodes: ["*"], passwordHash: "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0$Kx0pKfcyTj1Ao3eOIFQxqiAOxZTkQ6sUmq2zVgf8fBY"}]
service: {type: LoadBalancer, annotations: {example.org/pool: edge}, mqttPort: 1884}
persistence: {size: 100Gi, storageClass: fast}
serviceMonitor: {enabled: true, labels: {release: prometheus}, basicAuthSecret: hub-viewer}
podDisruptionBudget: {enabled: true}
networkPolicy:
  enabled: true
  nodes: [{ipBlock: {cidr: 192.0.2.0/24}}]
  people: [{namespaceSelector: {matchLabels: {team: plant}}}]
imagePullSecrets: [{name: registry}]
podLabels: {team: plant}
podAnnotations: {example.org/note: "yes"}
nodeSelector: {disk: ssd}
tolerations: [{key: edge, operator: Exists}]
affinity: {nodeAffinity: {}}
`

// clusterValues are three hubs, with all that goes with them.
const clusterValues = `
cluster: {enabled: true}
networkPolicy: {enabled: true}
serviceMonitor: {enabled: true}
image: {repository: registry.example/edgebus-hub}
`

// ownServersValues are three hubs whose log is on servers that there are.
const ownServersValues = `
cluster: {enabled: true, keySecret: mine, nats: {enabled: false}}
settings: {store: {nats: {servers: [tls://n1.example.org:4222], monitor: [https://n1.example.org:8222]}}}
affinity: {podAffinity: {}}
`

func runHelm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := filepath.Abs("../../../.tools/helm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make lint builds it", err)
	}
	if args[0] == "template" && !slices.Contains(args, "--kube-version") {
		args = append(args, "--kube-version", "1.33.0")
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	return string(out), err
}

func writeValues(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// render is what the chart makes, each object decoded as its kind, strictly: a field that the API doesn't have is an error.
func render(t *testing.T, values string) map[string]any {
	t.Helper()
	file := writeValues(t, values)
	if out, err := runHelm(t, "lint", "--strict", "--values", file, chartDir); err != nil {
		t.Fatalf("helm lint: %v\n%s", err, out)
	}
	out, err := runHelm(t, "template", "plant", chartDir, "--namespace", "bus", "--values", file)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	objects := map[string]any{}
	for _, text := range strings.Split(out, "\n---\n") {
		var head metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(text), &head); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		known := map[string]any{
			"v1/Secret": &corev1.Secret{}, "v1/Service": &corev1.Service{}, "apps/v1/StatefulSet": &appsv1.StatefulSet{},
			"policy/v1/PodDisruptionBudget": &policyv1.PodDisruptionBudget{}, "networking.k8s.io/v1/NetworkPolicy": &networkingv1.NetworkPolicy{},
			"monitoring.coreos.com/v1/ServiceMonitor": &monitoring.ServiceMonitor{},
		}[head.APIVersion+"/"+head.Kind]
		if known == nil {
			t.Fatalf("%s %s is not one of the chart's\n%s", head.APIVersion, head.Kind, text)
		}
		text, err := yaml.YAMLToJSONStrict([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		unknown, err := json.UnmarshalStrict(text, known) // in which the case of letters counts, as in the API
		if err = errors.Join(append(unknown, err)...); err != nil {
			t.Errorf("%s: %v\n%s", head.Kind, err, text)
		}
		objects[partOf(head.Kind, known)] = known
	}
	return objects
}

// partOf is an object's kind, with what it is of if that isn't the hub.
func partOf(kind string, object any) string {
	for _, part := range []string{"-hubs", "-nats"} {
		if strings.HasSuffix(object.(metav1.Object).GetName(), part) {
			return kind + part
		}
	}
	return kind
}

func TestTheChartMakesWhatTheAPITakes(t *testing.T) {
	for values, kinds := range map[string][]string{
		"":         {"Secret", "Service", "Service-hubs", "StatefulSet"},
		fullValues: {"NetworkPolicy", "PodDisruptionBudget", "Secret", "Service", "Service-hubs", "ServiceMonitor", "StatefulSet"},
		"existingSecret: mine\nnameOverride: broker\n": {"Service", "Service-hubs", "StatefulSet"},
		clusterValues:    {"NetworkPolicy", "NetworkPolicy-nats", "PodDisruptionBudget", "PodDisruptionBudget-nats", "Secret", "Service", "Service-hubs", "Service-nats", "ServiceMonitor", "StatefulSet", "StatefulSet-nats"},
		ownServersValues: {"PodDisruptionBudget", "Secret", "Service", "Service-hubs", "StatefulSet"},
	} {
		objects := render(t, values)
		if got := slices.Sorted(maps.Keys(objects)); !slices.Equal(got, kinds) {
			t.Errorf("it makes %v, not %v", got, kinds)
		}
		service := objects["Service"].(*corev1.Service)
		for _, part := range []string{"", "-hubs", "-nats"} {
			checkSelectors(t, objects, part)
		}
		if monitor, ok := objects["ServiceMonitor"].(*monitoring.ServiceMonitor); ok && !labels.SelectorFromSet(monitor.Spec.Selector.MatchLabels).Matches(labels.Set(service.Labels)) {
			t.Errorf("the selector of the ServiceMonitor does not match the Service")
		}
		checkPod(t, objects["StatefulSet"].(*appsv1.StatefulSet), service)
		if nats, ok := objects["StatefulSet-nats"].(*appsv1.StatefulSet); ok {
			checkPod(t, nats, objects["Service-nats"].(*corev1.Service))
		}
	}
}

// checkSelectors holds the selectors of what is of the hubs, or of the NATS servers, against their pods.
func checkSelectors(t *testing.T, objects map[string]any, part string) {
	t.Helper()
	of := part
	if part == "-hubs" {
		of = ""
	}
	set, ok := objects["StatefulSet"+of].(*appsv1.StatefulSet)
	if !ok {
		return
	}
	selectors := map[string]map[string]string{"StatefulSet": set.Spec.Selector.MatchLabels}
	if service, ok := objects["Service"+part].(*corev1.Service); ok {
		selectors["Service"] = service.Spec.Selector
	}
	if budget, ok := objects["PodDisruptionBudget"+part].(*policyv1.PodDisruptionBudget); ok {
		selectors["PodDisruptionBudget"] = budget.Spec.Selector.MatchLabels
	}
	if policy, ok := objects["NetworkPolicy"+part].(*networkingv1.NetworkPolicy); ok {
		selectors["NetworkPolicy"] = policy.Spec.PodSelector.MatchLabels
	}
	if affinity := set.Spec.Template.Spec.Affinity; affinity != nil && affinity.PodAntiAffinity != nil {
		selectors["anti-affinity"] = affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector.MatchLabels
	}
	for kind, selector := range selectors {
		for _, name := range []string{"StatefulSet", "StatefulSet-nats"} {
			other, ok := objects[name].(*appsv1.StatefulSet)
			if ok && labels.SelectorFromSet(selector).Matches(labels.Set(other.Spec.Template.Labels)) != (name == "StatefulSet"+of) || len(selector) == 0 {
				t.Errorf("the selector of the %s%s, %v, matches other pods than those of the StatefulSet%s", kind, part, selector, of)
			}
		}
	}
}

// checkPod holds what refers to something by a name against what has that name.
func checkPod(t *testing.T, set *appsv1.StatefulSet, service *corev1.Service) {
	t.Helper()
	spec := set.Spec.Template.Spec
	volumes, ports := map[string]bool{}, map[string]bool{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
	}
	for _, v := range set.Spec.VolumeClaimTemplates {
		volumes[v.Name] = true
	}
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("there is no volume %s for %s", m.Name, m.MountPath)
			}
		}
		for _, p := range c.Ports {
			ports[p.Name] = true
		}
		if !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation {
			t.Errorf("the container %s may do more than it needs to: %+v", c.Name, c.SecurityContext)
		}
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
			if probe != nil && probe.Exec != nil {
				t.Errorf("a probe of the container %s runs %v, which reads the settings that the Secret has now, not those that the hub began with", c.Name, probe.Exec.Command)
			}
		}
	}
	for _, p := range service.Spec.Ports {
		if !ports[p.TargetPort.String()] {
			t.Errorf("the container has no port %s, which the Service names", p.TargetPort.String())
		}
	}
	if !*spec.SecurityContext.RunAsNonRoot || *spec.AutomountServiceAccountToken {
		t.Errorf("the pod may do more than it needs to: %+v", spec.SecurityContext)
	}
}

func TestTheHubTakesTheSettingsOfTheChart(t *testing.T) {
	for values, want := range map[string]string{
		"": "plant-edgebus-hub.bus.svc", fullValues: "hub.example.org", clusterValues: "tls://plant-edgebus-hub-nats-2.plant-edgebus-hub-nats:4222", ownServersValues: "tls://n1.example.org:4222",
	} {
		secret := render(t, values)["Secret"].(*corev1.Secret)
		settings := secret.StringData["hub.yaml"]
		if !strings.Contains(settings, want) {
			t.Errorf("the settings don't have %s:\n%s", want, settings)
		}
		cmd := exec.Command("go", "run", "./cloud/cmd/cloudhub", "--config", writeValues(t, settings), "--check-config")
		cmd.Dir = "../../.."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "CLOUDHUB_LISTEN=public", "CLOUDHUB_DATA_DIR="+t.TempDir()) // as the image has them
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("cloudhub --check-config: %v\n%s\n%s", err, out, settings)
		}
	}
}

func TestTheSchemaRefusesWhatTheChartCantUse(t *testing.T) {
	for values, field := range map[string]string{
		"service: {type: Balancer}":                        "service",
		"service: {mqttPort: 70000}":                       "mqttPort",
		"persistence: {size: much}":                        "size",
		"replicas: 3":                                      "replicas",
		"podDisruptionBudget: {maxUnavailable: 2}":         "maxUnavailable",
		"address: hub.example.org":                         "address",
		"cluster: {enabled: true, replicas: 5}":            "replicas",
		"cluster: {enabled: true, nats: {enabled: false}}": "settings.store.nats.servers",
	} {
		out, err := runHelm(t, "template", "plant", chartDir, "--values", writeValues(t, values))
		if err == nil || !strings.Contains(out, field) {
			t.Errorf("%s: %v: %s", values, err, out)
		}
	}
}

// A StatefulSet makes no pods if its name leaves no room for a revision in their label controller-revision-hash.
func TestTheLongestNameIsOneOfStatefulSets(t *testing.T) {
	for kind, object := range render(t, clusterValues+"fullnameOverride: "+strings.Repeat("hub", 20)+"\n") {
		if set, ok := object.(*appsv1.StatefulSet); ok && len(set.Name)+len("-0123456789") > validation.LabelValueMaxLength {
			t.Errorf("%s: %s has %d characters", kind, set.Name, len(set.Name))
		}
	}
}

func TestKubernetesBefore130IsNotSentASleep(t *testing.T) {
	for version, want := range map[string]bool{"1.29.9": false, "1.30.0-gke.100": true, "1.33.0": true} {
		out, err := runHelm(t, "template", "plant", chartDir, "--values", writeValues(t, clusterValues), "--kube-version", version)
		if err != nil {
			t.Fatalf("helm template: %v\n%s", err, out)
		}
		if is := strings.Contains(out, "preStop"); is != want {
			t.Errorf("Kubernetes %s: preStop is there: %v, want %v", version, is, want)
		}
	}
}

// What three hubs are made of is written down, so that a change of it is seen.
func TestTheChartMakesThreeHubsAsItIsWrittenDown(t *testing.T) {
	const golden = "testdata/cluster.yaml"
	out, err := runHelm(t, "template", "plant", chartDir, "--namespace", "bus", "--values", writeValues(t, clusterValues))
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	if os.Getenv("GOLDEN") == "write" {
		if err := os.WriteFile(golden, []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out != string(want) {
		t.Errorf("the chart makes something else than %s has; if that is right: GOLDEN=write go test .\n%s", golden, out)
	}
}
