// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// checkAgent: do the node's programs run, and can it have what its spec says?
func checkAgent(d *NodeDiagnosis, f Facts) {
	l, _ := f.link()
	for _, program := range l.StoppedPrograms {
		d.add(MarkWrong, "start it on the node: systemctl start "+program+"; its log says why it ended: journalctl -u "+program, "%s does not run", program)
	}
	d.addIf(l.SpecFailed != "", MarkWrong, "mend the cause; then a full disk or the like is tried again by itself, and everything else with: kubectl annotate --overwrite node "+f.Node+" "+resource.RetryAnnotation+"=$(date +%s)",
		"the node's agent could not apply its spec: %s", l.SpecFailed)
	if c := resource.ConditionOf(f.Conditions, resource.ConditionDiskPressure); c.Status == "True" && f.Core == nil {
		d.add(MarkLook, "free space on it: when it is full, the node can't store what is published there, and what it is sent", "the node's core: %s", c.Message)
	}
	if c := resource.ConditionOf(f.Conditions, resource.ConditionSpecRendered); c.Status == "False" {
		d.add(MarkWrong, "correct what the message names, in the Node, its Fleet, or what they refer to: the node keeps what it was sent before",
			"the node's spec can't be rendered: %s", strings.TrimSuffix(c.Reason+": "+c.Message, ": "))
	}
}
