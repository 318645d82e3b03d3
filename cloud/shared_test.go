// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"net"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/cloud/cluster"
)

// Frames are given up when they are old, and each hub that was heard lately has them.
func TestFramesAreTrimmedWhenTheyAreOldAndAllHaveThem(t *testing.T) {
	now := time.Now()
	p := pastPositions{keep: time.Hour}
	trim := func(minutes int, at ordered.Position, others ...cluster.HeardHub) ordered.Position {
		return p.trimmable(now.Add(time.Duration(minutes)*time.Minute), at, others)
	}
	heard := func(minutes int, at ordered.Position) cluster.HeardHub {
		return cluster.HeardHub{Hub: cluster.Hub{At: at}, When: now.Add(time.Duration(minutes) * time.Minute)}
	}
	require.Zero(t, trim(0, 10_000, heard(0, 10_000)))
	require.Zero(t, trim(30, 20_000, heard(30, 20_000)), "nothing is an hour old")
	require.Zero(t, trim(60, 30_000), "nobody else has it")
	require.Zero(t, trim(61, 30_000, heard(0, 30_000)), "nobody else was heard within an hour")
	require.EqualValues(t, 10_000-trimSlack, trim(62, 30_000, heard(62, 30_000)))
	require.EqualValues(t, 15_000-trimSlack, trim(95, 40_000, heard(95, 40_000), heard(90, 15_000)), "one is behind")
	require.EqualValues(t, 20_000-trimSlack, trim(96, 40_000, heard(96, 40_000), heard(1, 100)), "one is away for longer than frames are kept")
}

func TestTheCommandsOfAClusterSayWhatTheyDo(t *testing.T) {
	for want, args := range map[string][]string{"status": {"cluster", "--help"}, "init": {"cluster", "init", "--help"}, "join BACKUP": {"cluster", "join", "-h"}} {
		var said, wrong bytes.Buffer
		require.Zero(t, Main(args, &said, &wrong), args)
		require.Contains(t, said.String(), "cloudhub cluster "+want, args)
		require.Empty(t, wrong.String(), args)
	}
	var said, wrong bytes.Buffer
	require.Equal(t, 2, Main([]string{"cluster"}, &said, &wrong))
	require.Contains(t, wrong.String(), "say one of init, join")
}

// A hub that stands by starts when it takes over, and collects garbage as rarely as any that starts.
func TestGarbageIsCollectedMoreOftenOnceAHubServes(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	listener := []net.Addr{&net.TCPAddr{}}
	tidyMemory(daemon.Addresses{HTTP: listener})
	require.Equal(t, 100, debug.SetGCPercent(100))
	tidyMemory(daemon.Addresses{HTTP: listener, MQTT: listener})
	require.Equal(t, gcPercent, debug.SetGCPercent(gcPercent))
}
