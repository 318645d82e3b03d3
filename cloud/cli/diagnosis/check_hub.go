// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"errors"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// SignInAdvice is the advice for a hub's API that requires credentials.
const SignInAdvice = "sign in with --cert and --key, with --user and --password-file, or with a context (edgebus context set)"

// checkHub: does it answer?
func checkHub(d *NodeDiagnosis, f Facts) {
	if f.Hub == nil {
		d.HubUnasked = true
		m := MarkWrong
		if f.Core != nil && f.Core.Links[0].State == resource.Online {
			m = MarkLook // its API may not be reachable from this machine by design
		}
		if f.HubRefused() {
			d.add(m, SignInAdvice, "the hub at %s did not let us in: %v", f.HubAt, f.HubErr)
			return
		}
		d.add(m, "is cloudhub running, and its HTTP address right? say where it is with --hub", "the hub does not answer at %s: %v", f.HubAt, f.HubErr)
		return
	}
	d.add(MarkOK, "", "the hub answers at %s (version %s)", f.HubAt, f.Hub.Version)
	var refused *client.Refused
	switch {
	case errors.As(f.MQTTErr, &refused):
		d.add(MarkLook, "sign in with --user and --password-file", "the hub's MQTT did not let us in: %v", f.MQTTErr)
	case errors.Is(f.MQTTErr, resource.Invalid):
		d.add(MarkLook, "say with --server where it is", "the hub's MQTT was not asked: %v", f.MQTTErr)
	case f.MQTTErr != nil:
		d.add(MarkWrong, "does the hub listen there? say where with --server; see mqtt in hub.yaml", "the hub's MQTT does not answer at %s: %v", f.MQTTAt, f.MQTTErr)
	}
}
