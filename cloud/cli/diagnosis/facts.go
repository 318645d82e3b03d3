// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"cmp"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// WorksAlone reports whether the node has no hub by its own settings: a hub's answer does not matter then.
func (f Facts) WorksAlone() bool { return f.Core != nil && f.Core.Links[0].State == resource.LinkAlone }

// HubRefused reports whether the hub answered that the credentials are missing, wrong, or not enough.
func (f Facts) HubRefused() bool {
	kind := resource.KindOf(f.HubErr)
	return kind == resource.Unauthorized || kind == resource.Forbidden
}

// Unknown reports whether the hub, which has answered, knows no link of the node.
func (f Facts) Unknown() bool {
	return len(f.Hub.Links) == 0 || f.Hub.Links[0].State == resource.Unknown
}

// hubLink is the hub's end of the link.
func (f Facts) hubLink() (l resource.Link) {
	if f.Hub != nil && len(f.Hub.Links) > 0 {
		l = f.Hub.Links[0]
	}
	return l
}

// link is the link as the hub sees it, with what its core knows better, else as the core sees it; known is false if the hub has never
// heard of the node.
func (f Facts) link() (l resource.Link, known bool) {
	if f.Hub != nil && f.Unknown() || f.Hub == nil && f.Core == nil {
		return l, false
	}
	l = f.hubLink()
	if f.Core != nil {
		core := f.Core.Links[0]
		if f.Hub == nil {
			l = core
		}
		if core.CertificateExpires != "" && (l.CertificateExpires == "" || core.CertificateExpires < l.CertificateExpires) {
			l.CertificateExpires = core.CertificateExpires
		}
		l.RenewalError, l.RenewalFailingSince = core.RenewalError, core.RenewalFailingSince // which is newer than what the hub knows
		l.OverQuota = cmp.Or(l.OverQuota, core.OverQuota)
	}
	return l, true
}

// Facts are the answers that a diagnosis is made from.
type Facts struct {
	Node              string
	HubAt, CoreAt     string
	Hub, Core         *resource.LinkReport
	HubErr, CoreErr   error
	CoreGiven         bool
	HubTime, CoreTime time.Time // of this host, when they answered
	Devices           []resource.Device
	MQTTAt            string
	MQTTErr           error
	Mappers           map[string]string    // state by name
	Waiting           []string             // names of EnrollmentRequests of the node without a decision
	Similar           string               // ": did you mean n1?", of a node that the hub doesn't know
	Joined            string               // when a node that has never connected to the hub has joined; empty: it has not
	Conditions        []resource.Condition // of the Node
}
