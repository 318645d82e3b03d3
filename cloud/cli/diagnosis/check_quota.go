// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"github.com/edgebus/edgebus/topics/resource"
)

// checkQuota: is there room for what is published on the node?
func checkQuota(d *NodeDiagnosis, f Facts) {
	l, known := f.link()
	d.addIf(l.OverQuota != "", MarkWrong, "delete keys of the node, or raise limits.node on the hub", "the hub accepts nothing that the node reports: %s", l.OverQuota)
	if !known || f.Core == nil || f.Core.Owned == nil {
		return
	}
	o := f.Core.Owned
	const advice = "delete keys that are not needed, or raise limits.node in core.yaml and on the hub"
	for _, x := range []struct {
		have, most int
		of         string
	}{{o.Keys, o.MaxKeys, "keys"}, {o.Bytes, o.MaxBytes, "bytes"}} {
		switch {
		case x.most == 0 || float64(x.have) < fullQuota*float64(x.most):
		case x.have >= x.most:
			d.add(MarkWrong, advice, "the node owns %d %s of the %d that it may: more are refused", x.have, x.of, x.most)
		default:
			d.add(MarkLook, advice, "the node owns %d %s of the %d that it may", x.have, x.of, x.most)
		}
	}
	n := f.Core.Refused[string(resource.Quota)]
	d.addIf(n > 0, MarkLook, advice, "%d publishes were refused for a limit on the node since the core's start; its log names the topics", n)
}
