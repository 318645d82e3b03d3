// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/resource"
)

func wholeCluster() resource.ClusterStatus {
	s := resource.ClusterStatus{Hub: "b", Owner: "a", Owned: true, Records: 1, Engine: resource.ClusterEngine{Kind: "nats", Name: "edgebus", Leader: "n1", Quorum: true, Replicas: 3, End: 100, Answer: 0.01}}
	for i, role := range []string{resource.RoleOwner, resource.RoleStandby, resource.RoleStandby} {
		s.Hubs = append(s.Hubs, resource.ClusterHub{Name: string("abc"[i]), Role: role, Version: "v1", Records: 1, Position: 100})
		s.Engine.Servers = append(s.Engine.Servers, resource.ClusterServer{Name: fmt.Sprint("n", i+1), Leader: i == 0, Current: true})
	}
	return s
}

func TestEachFaultOfAClusterHasAFindingWithWhatToDo(t *testing.T) {
	well := DiagnoseCluster(wholeCluster())
	require.NoError(t, well.ExitError())
	require.Len(t, well.Findings, 1)
	require.Contains(t, well.Text(terminal.Colours(false)), "✓ a serves")
	for name, c := range map[string]struct {
		spoil func(*resource.ClusterStatus)
		said  string
		mark  Mark
	}{
		"no owner":                        {func(s *resource.ClusterStatus) { s.Owned, s.Silent = false, 7 }, "no hub serves: nothing was heard of a for 7.0 s", MarkWrong},
		"none, asked of the one that was": {func(s *resource.ClusterStatus) { s.Owned, s.Silent, s.Hub = false, 7, "a" }, "no hub serves: a, which has the log, has had no answer of it for 7.0 s", MarkWrong},
		"none read of":                    {func(s *resource.ClusterStatus) { s.Owner = "" }, "has not read yet", MarkWrong},
		"no answer":                       {func(s *resource.ClusterStatus) { s.Engine = resource.ClusterEngine{Error: "timeout"} }, "don't answer: timeout", MarkWrong},
		"no quorum":                       {func(s *resource.ClusterStatus) { s.Engine.Quorum = false }, "no quorum", MarkWrong},
		"wrong settings":                  {func(s *resource.ClusterStatus) { s.Engine.Wrong = "it drops frames" }, "it drops frames", MarkWrong},
		"server gone":                     {func(s *resource.ClusterStatus) { s.Engine.Servers[2].Offline = true }, "server n3 is gone\n  → start it: if one more is lost nothing is acknowledged\n", MarkWrong},
		"one server of five gone": {func(s *resource.ClusterStatus) { // two may be lost
			s.Engine.Replicas = 5
			s.Engine.Servers = append(s.Engine.Servers, resource.ClusterServer{Name: "n4", Current: true}, resource.ClusterServer{Name: "n5", Offline: true})
		}, "server n5 is gone\n  → start it\n", MarkWrong},
		"server behind": {func(s *resource.ClusterStatus) { s.Engine.Servers[2].Current, s.Engine.Servers[2].Lag = false, 9 }, "n3 is behind by 9", MarkLook},
		"server stays behind": {func(s *resource.ClusterStatus) {
			n := &s.Engine.Servers[2]
			n.Current, n.Lag, n.BehindSeconds = false, 1474, 47
		}, "n3 is behind by 1474 operations, for 47s\n  → if it isn't less behind in a minute: stop it, delete its store_dir if there is nothing but this log in it, start it; if it is behind again, " +
			"look at its disk and its network. If one more is lost meanwhile nothing is acknowledged\n", MarkWrong},
		"server stays behind, and the leader is alone": {func(s *resource.ClusterStatus) { // then it may be the only one that has something
			s.Engine.Quorum = false
			for i := range s.Engine.Servers[1:] {
				n := &s.Engine.Servers[1+i]
				n.Current, n.Lag, n.BehindSeconds = false, 1474, 47
			}
		}, "n3 is behind by 1474 operations, for 47s\n✓", MarkWrong},
		"server stays behind, and another of five is gone": {func(s *resource.ClusterStatus) { // then it may be the third that has something
			s.Engine.Replicas = 5
			s.Engine.Servers = append(s.Engine.Servers, resource.ClusterServer{Name: "n4", Current: true}, resource.ClusterServer{Name: "n5", Offline: true})
			n := &s.Engine.Servers[2]
			n.Current, n.Lag, n.BehindSeconds = false, 1474, 47
		}, "n3 is behind by 1474 operations, for 47s\n✗ the log's server n5 is gone", MarkWrong},
		"server missing":   {func(s *resource.ClusterStatus) { s.Engine.Servers = s.Engine.Servers[:2] }, "the log is on 2 servers, and 3 are to have it", MarkWrong},
		"slow servers":     {func(s *resource.ClusterStatus) { s.Engine.Answer = 1.5 }, "1.5 s to answer", MarkLook},
		"a hub away":       {func(s *resource.ClusterStatus) { s.Hubs[1].Role, s.Hubs[1].Heard = resource.RoleAway, 200 }, "hub b was last heard 3m20s ago", MarkWrong},
		"all others away":  {func(s *resource.ClusterStatus) { s.Hubs[1].Role, s.Hubs[2].Role = resource.RoleAway, resource.RoleAway }, "no other hub could take over", MarkWrong},
		"one that may not": {func(s *resource.ClusterStatus) { s.Hubs[1].Barred = "unsynced" }, "hub b can't take over: unsynced", MarkWrong},
		"one that may not, by much": {func(s *resource.ClusterStatus) {
			s.Hubs[1].Barred = "its host's clock differs (" + strings.Repeat("the server n1 is 1h0m0s ahead, ", 12) + "): set it, and have it follow a time server (timedatectl set-ntp true)"
		}, "(timedatectl set-ntp true)\n", MarkWrong},
		"a hub behind":   {func(s *resource.ClusterStatus) { s.Hubs[2].BehindFrames, s.Hubs[2].BehindSeconds = 70, 12 }, "hub c is behind by 70 frames, for 12s", MarkWrong},
		"a wrong clock":  {func(s *resource.ClusterStatus) { s.Hubs[2].Clock = -3 }, "differs by -3.0 s", MarkWrong},
		"one name twice": {func(s *resource.ClusterStatus) { s.Hubs[2].Twice = true }, "two hubs are called c", MarkWrong},
		"drained":        {func(s *resource.ClusterStatus) { s.Hubs[2].Role = resource.RoleDrained }, "hub c is drained", MarkLook},
		"upgraded": {func(s *resource.ClusterStatus) {
			for i := range s.Hubs {
				s.Hubs[i].Records++
			}
		}, "a newer version of records than the log's", MarkLook},
		"other users":  {func(s *resource.ClusterStatus) { s.Hubs[2].OtherAuth = true }, "hub c has other settings of auth than a, which serves", MarkWrong},
		"two versions": {func(s *resource.ClusterStatus) { s.Hubs[2].Version = "v2" }, "different versions", MarkLook},
	} {
		t.Run(name, func(t *testing.T) {
			s := wholeCluster()
			c.spoil(&s)
			d := DiagnoseCluster(s)
			require.Contains(t, d.Text(terminal.Colours(false)), c.said)
			if c.mark == MarkWrong {
				require.Error(t, d.ExitError())
			} else {
				require.NoError(t, d.ExitError())
			}
		})
	}
}
