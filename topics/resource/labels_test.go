// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A label follows the system information until a person gives it another value or removes it, and again once it is as the system says.
func TestLabelsFollowTheSystemInformation(t *testing.T) {
	n := Node{Metadata: Meta{
		Annotations: map[string]string{LabelFromAnnotation: "arch=architecture, os=osImage,kernel=kernel,site=hostname,bad=nothing,=kernel"},
		Labels:      map[string]string{"arch": "amd64", "site": "hall", "own": "x"},
	}}
	follow := func(arch, kernel, image string) {
		t.Helper()
		n.Status.SystemInfo = &SystemInfo{Architecture: arch, Kernel: kernel, Hostname: "gate"}
		n.Status.OS = &OSStatus{Image: image}
		n.FollowSystem()
	}
	n.FollowSystem()
	require.NotContains(t, n.Metadata.Annotations, LabelsGivenAnnotation, "nothing is known")
	follow("amd64", "", "quay.io/os:1")
	want := map[string]string{"arch": "amd64", "os": "quay.io-os-1", "site": "hall", "own": "x"}
	require.Equal(t, want, n.Metadata.Labels, "a label that somebody has given stays")
	require.Equal(t, "arch=amd64,os=quay.io-os-1", n.Metadata.Annotations[LabelsGivenAnnotation])

	follow("arm64", "6.12.1+x", "quay.io/os:2")
	want["arch"], want["os"], want["kernel"] = "arm64", "quay.io-os-2", "6.12.1-x"
	require.Equal(t, want, n.Metadata.Labels)
	follow("", "", "")
	require.Equal(t, want, n.Metadata.Labels, "what is not known any more stays")

	n.Metadata.Labels["arch"] = "special"
	delete(n.Metadata.Labels, "kernel")
	follow("amd64", "6.13", "quay.io/os:2")
	require.Equal(t, map[string]string{"arch": "special", "os": "quay.io-os-2", "site": "hall", "own": "x"}, n.Metadata.Labels, "a person's edit wins")
	n.Metadata.Labels["arch"], n.Metadata.Labels["kernel"] = "amd64", "6.12.1-x" // as it is, and as it was
	follow("amd64", "6.14", "quay.io/os:2")
	follow("riscv64", "6.14", "quay.io/os:2")
	require.Equal(t, map[string]string{"arch": "riscv64", "kernel": "6.14", "os": "quay.io-os-2", "site": "hall", "own": "x"}, n.Metadata.Labels)

	n.Metadata.Annotations[LabelFromAnnotation] = "arch=architecture"
	follow("amd64", "6.15", "quay.io/os:3")
	require.Equal(t, "6.14", n.Metadata.Labels["kernel"], "the annotation has it no more")
	require.Equal(t, "arch=amd64", n.Metadata.Annotations[LabelsGivenAnnotation])
}
