package cloud

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/twin"
	"github.com/edgebus/edgebus/configs/daemon"
	"github.com/edgebus/edgebus/configs/daemon/metrics"
	"github.com/edgebus/edgebus/topics/resource"
)

// links answers how the hub's links are, when it is asked.
func links(self resource.HubID, tw *twin.Twins, br *broker.Broker, commits *metrics.Commits, version string) func(node string, most int) resource.LinkReport {
	return func(node string, most int) resource.LinkReport {
		report := br.Report()
		r := resource.LinkReport{
			Program: "cloudhub", Version: version, Now: resource.Time(time.Now()), Hub: self.Text(),
			Gone: commits.Gone(), Short: daemon.DescriptorsShort(), Failing: commits.Failing(), Damaged: commits.Damaged(), Refused: report.Refused,
			FullestQueue: report.FullestQueue, FullestOf: report.FullestOf, Missed: report.Missed,
		}
		r.Links, r.More = tw.Links(node, most)
		return r
	}
}

// ready says that the hub's stores can store.
func ready(commits *metrics.Commits) func(context.Context) error {
	return func(context.Context) error {
		if gone := commits.Gone(); gone != "" {
			return errors.New(gone)
		}
		failing := commits.Failing()
		if len(failing) == 0 {
			return nil
		}
		var all []string
		for _, store := range slices.Sorted(maps.Keys(failing)) {
			all = append(all, fmt.Sprintf("%s can't be stored: %s", store, failing[store]))
		}
		return errors.New(strings.Join(all, "; "))
	}
}
