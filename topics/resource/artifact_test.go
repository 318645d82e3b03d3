// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The source of an Artifact is an HTTPS address, or a repository of a registry.
func TestSourcesOfArtifacts(t *testing.T) {
	for source, ok := range map[string]bool{
		"":                                  true,
		"https://example.com/edgebus":       true,
		"https://example.com":               true,
		"oci://ghcr.io/example/edgebus":     true,
		"oci://127.0.0.1:5000/a/b-c__d.e/f": true,
		"http://example.com/edgebus":        false,
		"https://example.com/a/../b":        false,
		"https://example.com/a/%2e%2e/b":    false,
		"https://u:p@example.com/a":         false,
		"https://example.com/a?x=1":         false,
		"oci://ghcr.io":                     false,
		"oci://ghcr.io/":                    false,
		"oci:///edgebus":                    false,
		"oci://ghcr.io/Example":             false,
		"oci://ghcr.io/example:v1.2.0":      false,
		"oci://ghcr.io/example@sha256:0":    false,
		"oci://ghcr.io/a/../b":              false,
		"oci://ghcr.io/a b":                 false,
		"; rm -rf /":                        false,
	} {
		a := Artifact{Spec: ArtifactSpec{Source: source}}
		err := a.Validate()
		require.Error(t, err) // the rest is missing
		if ok {
			require.NotContains(t, err.Error(), "spec.source", source)
		} else {
			require.ErrorContains(t, err, "spec.source: ", source)
		}
	}
}
