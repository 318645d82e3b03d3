// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"time"

	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/topics/resource"
)

// checkCertificates: how long are the link's certificates good, and are they renewed?
func checkCertificates(d *NodeDiagnosis, f Facts) {
	l, _ := f.link()
	since := ""
	if l.RenewalFailingSince != "" {
		since = ", since " + l.RenewalFailingSince
	}
	d.addIf(l.RenewalError != "", MarkLook, "it is tried again; the hub's log may say why it was refused", "the node's certificate could not be renewed%s: %s", since, l.RenewalError)
	at, err := resource.ParseTime(l.CertificateExpires)
	if err != nil {
		return
	}
	const advice = "make a new one: scripts/certs.sh renew; of a node that has joined: edgebus invite, and edgecore join with what it prints"
	switch left := time.Until(at); {
	case left < 0:
		d.add(MarkWrong, advice, "a certificate of the link has expired on %s", l.CertificateExpires)
	case left < certificateOK:
		d.add(MarkLook, advice, "a certificate of the link expires in %s, on %s", printer.Age(left), l.CertificateExpires)
	default:
		d.add(MarkOK, "", "the link's certificates are good for another %s, until %s", printer.Age(left), l.CertificateExpires)
	}
}
