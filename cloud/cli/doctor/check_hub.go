package doctor

import (
	"errors"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// signIn is the advice for a hub's API that requires credentials.
const signIn = "sign in with --cert and --key, with --user and --password-file, or with a context (edgebus context set)"

// checkHub: does it answer?
func checkHub(d *nodeDiagnosis, f facts) {
	if f.hub == nil {
		d.hubUnasked = true
		m := markWrong
		if f.core != nil && f.core.Links[0].State == resource.Online {
			m = markLook // its API may not be reachable from this machine by design
		}
		if f.hubRefused() {
			d.add(m, signIn, "the hub at %s did not let us in: %v", f.hubAt, f.hubErr)
			return
		}
		d.add(m, "is cloudhub running, and its HTTP address right? say where it is with --hub", "the hub does not answer at %s: %v", f.hubAt, f.hubErr)
		return
	}
	d.add(markOK, "", "the hub answers at %s (version %s)", f.hubAt, f.hub.Version)
	var refused *client.Refused
	switch {
	case errors.As(f.mqttErr, &refused):
		d.add(markLook, "sign in with --user and --password-file", "the hub's MQTT did not let us in: %v", f.mqttErr)
	case errors.Is(f.mqttErr, resource.Invalid):
		d.add(markLook, "say with --server where it is", "the hub's MQTT was not asked: %v", f.mqttErr)
	case f.mqttErr != nil:
		d.add(markWrong, "does the hub listen there? say where with --server; see mqtt in hub.yaml", "the hub's MQTT does not answer at %s: %v", f.mqttAt, f.mqttErr)
	}
}
