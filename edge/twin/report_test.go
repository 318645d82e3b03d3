package twin

import (
	"strings"
	"testing"

	"github.com/edgebus/edgebus/broker"
)

func TestTheNodesStatusSaysHowLittleOfItsDiskIsFree(t *testing.T) {
	r := newJoinedRig(t)
	says := func(want bool) func(broker.Message) bool {
		return func(m broker.Message) bool {
			return len(m.Payload) > 0 && strings.Contains(string(m.Payload), `"lowSpace":"2 % of the disk with /data is free"`) == want
		}
	}
	r.shows("status", says(false))
	r.twin.SetLowSpace("2 % of the disk with /data is free")
	r.shows("status", says(true))
	r.twin.SetLowSpace("")
	r.shows("status", says(false))
}
