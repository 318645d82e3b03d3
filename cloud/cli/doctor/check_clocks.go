package doctor

import (
	"math"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/topics/resource"
)

// checkClocks compares the clocks: by the times that both report now, or by what the node told the hub last.
func checkClocks(d *nodeDiagnosis, f facts) {
	var ahead time.Duration
	switch {
	case f.hub != nil && f.core != nil:
		hub, err1 := resource.ParseTime(f.hub.Now)
		core, err2 := resource.ParseTime(f.core.Now)
		if err1 != nil || err2 != nil {
			return
		}
		ahead = core.Sub(hub) - f.coreTime.Sub(f.hubTime)
	case f.hub != nil && len(f.hub.Links) > 0 && f.hub.Links[0].ClockAhead != nil:
		ahead = time.Duration(*f.hub.Links[0].ClockAhead * float64(time.Second))
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
		d.add(markWrong, advice, "the node's clock is %s %s the hub's", printer.Age(size), how)
	case size > clockLook:
		d.add(markLook, advice, "the node's clock is %s %s the hub's", printer.Age(size), how)
	default:
		d.add(markOK, "", "the clocks agree")
	}
}
