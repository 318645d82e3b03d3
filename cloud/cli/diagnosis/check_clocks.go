// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"math"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/topics/resource"
)

// checkClocks compares the clocks: by the times that both report now, or by what the node told the hub last.
func checkClocks(d *NodeDiagnosis, f Facts) {
	var ahead time.Duration
	switch {
	case f.Hub != nil && f.Core != nil:
		hub, err1 := resource.ParseTime(f.Hub.Now)
		core, err2 := resource.ParseTime(f.Core.Now)
		if err1 != nil || err2 != nil {
			return
		}
		ahead = core.Sub(hub) - f.CoreTime.Sub(f.HubTime)
	case f.Hub != nil && len(f.Hub.Links) > 0 && f.Hub.Links[0].ClockAhead != nil:
		ahead = time.Duration(*f.Hub.Links[0].ClockAhead * float64(time.Second))
	default:
		return
	}
	how := "ahead of"
	if ahead < 0 {
		how = "behind"
	}
	const advice = "run NTP on both: times of values, validUntil and certificates depend on it"
	switch size := time.Duration(math.Abs(float64(ahead))); {
	case size > clockWrong:
		d.add(MarkWrong, advice, "the node's clock is %s %s the hub's", printer.Age(size), how)
	case size > clockLook:
		d.add(MarkLook, advice, "the node's clock is %s %s the hub's", printer.Age(size), how)
	default:
		d.add(MarkOK, "", "the clocks agree")
	}
}
