// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnUpgradeIsOfOneThing(t *testing.T) {
	many := make([]string, maxPulled+1)
	for field, spec := range map[string]UpgradeSpec{
		"":                        {Settings: map[string]string{"link.rate": "1MB", "log.level": "debug"}},
		"spec.version":            {},
		"spec.settings":           {Version: "v1.2.0", Settings: map[string]string{"link.rate": "1MB"}},
		"spec.images":             {Settings: map[string]string{"link.rate": "1MB"}, Images: []string{"r.example/a:1"}},
		"spec.settings; name":     {Settings: map[string]string{"; rm -rf /": "1"}},
		"spec.settings.link.rate": {Settings: map[string]string{"link.rate": "1\nauth: {}"}},
		"spec.settings.link.long": {Settings: map[string]string{"link.long": strings.Repeat("x", maxSettingValue+1)}},
		"spec.images[0]":          {Images: []string{"r.example/a:1; rm -rf /"}},
		"spec.images[1]":          {Images: []string{"r.example/a:1", "r.example/a:1"}},
		"spec.images; many":       {Images: many},
		"spec.upgradeCmd":         {Images: []string{"r.example/a:1"}, UpgradeCmd: "/usr/bin/up"},
		"spec.artifact":           {Settings: map[string]string{"link.rate": "1MB"}, Artifact: "v1.2.0"},
		"spec.confirmed":          {Images: []string{"r.example/a:1"}, Confirmed: "; rm -rf /"},
	} {
		spec.NodeNames = []string{"n1"}
		err := Upgrade{Metadata: Meta{Name: "u"}, Spec: spec}.Validate()
		at, _, _ := strings.Cut(field, ";")
		if field == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, at+": ", field)
	}
	of := Upgrade{Spec: UpgradeSpec{Version: "v1.2.0"}}
	require.ErrorContains(t, Upgrade{Spec: UpgradeSpec{Images: []string{"r.example/a:1"}}}.CheckUpdate(of), "spec.version: can't be taken away")
}
