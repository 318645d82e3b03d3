package upgrade

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// A good version is committed, and the one before is kept.
func TestAGoodVersionIsCommitted(t *testing.T) {
	t.Parallel()
	n := newNode(t, time.Minute)
	r := n.order(n.bundle("v1.1.0", map[string][]byte{"edgecore": good(t, "v1.1.0")}))
	require.Equal(t, resource.UpgradeSuccess, r.Result, "%+v", r)
	require.Equal(t, "v1.0.0 v1.1.0 v1.1.0", r.From+" "+r.To+" "+r.Version)
	n.whole("v1.1.0")
	require.FileExists(t, n.programs+"/versions/v1.0.0/edgecore")
}

// Each of these versions is rolled back by the agent alone.
func TestABadVersionIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode, reason, message, log string
		after                      time.Duration
	}{
		{mode: "exits", reason: resource.UpgradeFailedExited, message: "exit status 3", log: "this core: exits"},
		{mode: "exits later", reason: resource.UpgradeFailedExited, message: "exit status 4", after: 700 * time.Millisecond},
		{mode: "panics", reason: resource.UpgradeFailedExited, message: "exit status 2", log: "panic: out of cheese", after: 700 * time.Millisecond},
		{mode: "hangs", reason: resource.UpgradeFailedHang, message: "does not answer"},
		{mode: "hangs later", reason: resource.UpgradeFailedHang, message: "does not answer", after: 700 * time.Millisecond},
		{mode: "ignores SIGTERM", reason: resource.UpgradeFailedHang, message: "does not answer"},
		{mode: "forks", reason: resource.UpgradeFailedExited, message: "exit status 0"},
		{mode: "never connects", reason: resource.UpgradeFailedConnection, message: "no connection to the hub"},
		{mode: "drops the link", reason: resource.UpgradeFailedConnection, message: "no connection to the hub", after: 500 * time.Millisecond},
		{mode: "eats memory", reason: resource.UpgradeFailedMemory, message: "bytes of memory", after: time.Millisecond},
		{mode: "is another version", reason: resource.UpgradeFailedArtifact, message: "says that it is version v9.9.9"},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			timeout := time.Minute // it ends by itself
			if c.reason == resource.UpgradeFailedHang || c.reason == resource.UpgradeFailedConnection {
				timeout = 4 * time.Second
			}
			n := newNode(t, timeout)
			r := n.order(n.bundle("v1.1.0", map[string][]byte{"edgecore": bad(t, "v1.1.0", c.mode, c.after)}))
			require.Equal(t, resource.UpgradeRolledBack+" "+c.reason, r.Result+" "+r.Reason, "%+v", r)
			require.Contains(t, r.Message, c.message)
			require.Contains(t, r.Log, c.log, "the end of the version's output")
			n.whole("v1.0.0")
		})
	}
}
