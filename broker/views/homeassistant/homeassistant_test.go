// SPDX-License-Identifier: Apache-2.0

package homeassistant

import (
	"testing"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/broker/views/viewtest"
)

func TestWhatHomeAssistantIsTold(t *testing.T) {
	for name, o := range map[string]Options{
		"own":   {Instance: "n1", Prefix: "homeassistant", Base: "edgebus", Own: true},
		"other": {Instance: "n1", Prefix: "homeassistant", Base: "edgebus"},
		"hub":   {Prefix: "homeassistant", Base: "edgebus"},
	} {
		viewtest.Run(t, viewtest.Options{Files: "testdata/" + name + "*.txt", New: func() views.View { return New(o) }})
	}
}
