package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Each rule is left out in turn. A simulation that then finds nothing would
// find nothing either if the machines broke that rule.
func TestChecksNoticeEachMissingRule(t *testing.T) {
	quiet := world{}
	forked := world{restoreOwner: true, restoreReplica: true}
	silent := world{restoreOwner: true, restoreReplica: true, silent: true}
	for name, c := range map[string]struct {
		world
		rules
		noStamp bool
		want    string
	}{
		// The digest would mend what these two break, so it is off as well.
		"base of a DELTA": {world: quiet, rules: rules{noBase: true, noDigest: true}, want: "I2 different at rest"},
		"floor of dropped tombstones": {
			world: forked, rules: rules{noFloor: true, noDigest: true}, want: "I2 different at rest",
		},
		"digest":                {world: silent, rules: rules{noDigest: true}, want: "I2 different at rest"},
		"new lineage":           {world: silent, rules: rules{noLineage: true}, want: "L no rest"},
		"FULL replaces":         {world: forked, rules: rules{noReplace: true}, want: "I2 different at rest"},
		"digest of an ADOPT":    {world: forked, rules: rules{noAdopt: true, noDigest: true}, want: "I2 different at rest"},
		"connection of a SEEN":  {world: silent, rules: rules{noNonce: true}, want: "I5 in step, and different"},
		"guard of effects":      {world: quiet, rules: rules{noGuard: true}, want: "I4 effect twice"},
		"stamp of the restorer": {world: world{restoreOwner: true}, noStamp: true, want: "I4 effect of an older version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := c.world
			w.rules, w.noStamp = c.rules, c.noStamp
			count, _, _ := campaign(w, 0, 5000)
			t.Log(count)
			require.NotZero(t, count[c.want])
		})
	}
}

// Without the ablated rules the same seeds are clean, I5 included, even where
// SYNC promises less.
func TestSilentRestoreStaysHonestAboutInStep(t *testing.T) {
	count, example, _ := campaign(world{restoreOwner: true, restoreReplica: true, silent: true}, 0, 5000)
	require.Empty(t, count, "seeds %v", example)
}
