// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// newTestAgentWithClock returns a rig whose clock stands where the test says, and the images that its engine pulled.
func newTestAgentWithClock(t *testing.T) (r *testAgent, now *time.Time, pulled *[]string) {
	t.Helper()
	r = newTestAgent(t, nil)
	now, pulled = new(time.Time), new([]string)
	*now = time.Date(2026, 11, 2, 12, 0, 0, 0, time.UTC)
	r.o.Now = func() time.Time { return *now }
	r.now = r.o.Now
	r.agent.o.pull = func(_ context.Context, image string) error {
		*pulled = append(*pulled, image)
		return errors.New("no such registry")
	}
	return r, now, pulled
}

// runningApplications are Applications that run.
type runningApplications struct{}

func (runningApplications) Files(resource.RenderedApplication) ([]resource.RenderedFile, error) {
	return nil, nil
}

func (runningApplications) Switch(context.Context, []resource.RenderedApplication, []resource.RenderedApplication, []string) ([]string, error) {
	return nil, nil
}

func (runningApplications) Start(context.Context, resource.RenderedApplication) error { return nil }

func (runningApplications) Status(_ context.Context, apps []resource.RenderedApplication) (list []resource.ApplicationStatus) {
	for _, app := range apps {
		list = append(list, resource.ApplicationStatus{Name: app.Name, Status: "Running"})
	}
	return list
}

func utcSchedule(at, open string) *resource.UpdateSchedule {
	return &resource.UpdateSchedule{At: at, TimeZone: "UTC", StartGraceDuration: open}
}

// A spec is downloaded in the one window and applied in the other. Meanwhile the agent keeps what it has applied before.
func TestPolicyHasWindows(t *testing.T) {
	r, now, pulled := newTestAgentWithClock(t)
	r.send("spec", specOfVersion("1", textFile("/etc/a", "one")))
	r.settle()

	s := specOfVersion("2", textFile("/etc/a", "two"))
	s.UpdatePolicy = &resource.UpdatePolicy{DownloadSchedule: utcSchedule("0 20 * * *", "2h"), UpdateSchedule: utcSchedule("0 2 * * *", "1h")}
	s.Applications = []resource.RenderedApplication{{Name: "shop", AppType: resource.AppQuadlet, Images: []string{"quay.io/shop:1"}}}
	r.applications = runningApplications{}
	r.send("spec", s)
	require.Equal(t, windowPoll, r.runOnce(t.Context()))
	require.Equal(t, "False WaitingForWindow: version 2: it is downloaded from 2026-11-02T20:00:00Z on", r.condition("Updating"))
	require.Contains(t, r.condition("SpecApplied"), "True Applied: version 1")
	require.Empty(t, *pulled)

	*now = time.Date(2026, 11, 2, 20, 0, 0, 0, time.UTC)
	require.Equal(t, windowPoll, r.runOnce(t.Context()))
	require.Equal(t, "False WaitingForWindow: version 2: it is downloaded, and applied from 2026-11-03T02:00:00Z on", r.condition("Updating"))
	require.Equal(t, []string{"quay.io/shop:1"}, *pulled, "one that can't be pulled is left to the start")
	require.Equal(t, "one", r.file("etc/a"))

	// It waits over the end of the download's window, without downloading again.
	*now = time.Date(2026, 11, 3, 1, 59, 30, 0, time.UTC)
	require.Equal(t, 30*time.Second, r.runOnce(t.Context()))
	require.Len(t, *pulled, 1)
	*now = now.Add(30 * time.Second)
	r.settle()
	require.Equal(t, "two", r.file("etc/a"))
	require.Equal(t, "2", r.reportNow(nil).RenderedVersion)
	require.Contains(t, r.condition("Updating"), "False Idle")
}

// A spec without a policy is applied at once, whatever one of the former says: so somebody can end the waiting.
func TestPolicyIsThatOfTheSpecItself(t *testing.T) {
	r, _, _ := newTestAgentWithClock(t)
	s := specOfVersion("1", textFile("/etc/a", "one"))
	s.UpdatePolicy = &resource.UpdatePolicy{UpdateSchedule: utcSchedule("0 2 * * *", "")}
	r.send("spec", s)
	require.Equal(t, windowPoll, r.runOnce(t.Context()))
	require.Equal(t, "none", r.file("etc/a"))
	r.send("spec", specOfVersion("2", textFile("/etc/a", "two")))
	r.settle()
	require.Equal(t, "two", r.file("etc/a"))

	s = specOfVersion("3", textFile("/etc/a", "three"))
	s.UpdatePolicy = &resource.UpdatePolicy{UpdateSchedule: utcSchedule("0 12 * * *", "")}
	r.send("spec", s)
	r.settle()
	require.Equal(t, "three", r.file("etc/a"), "the window is open")
}

func TestPolicyThatCannotBeRead(t *testing.T) {
	r, _, _ := newTestAgentWithClock(t)
	s := specOfVersion("1", textFile("/etc/a", "one"))
	s.UpdatePolicy = &resource.UpdatePolicy{UpdateSchedule: utcSchedule("0 25 * * *", "")}
	r.send("spec", s)
	r.settle()
	require.Contains(t, r.condition("SpecApplied"), `False InvalidSpec: version 1: updatePolicy.updateSchedule: "0 25 * * *" is no cron expression`)
	require.Equal(t, "none", r.file("etc/a"))
}

// The OS image is downloaded in its window, once, whatever ends the agent meanwhile, and the switch has it. Downloads that fail are tried again,
// at ever longer intervals.
func TestOSImageIsDownloadedAheadOfTheSwitch(t *testing.T) {
	r, now, _ := newTestAgentWithClock(t)
	m := &imageHost{booted: "os:1", previous: "os:0", offline: true, point: func(string) {}}
	restart := func() {
		r.stop()
		r.boot = fmt.Sprint("boot-", m.boots)
		r.o.os = m
		r.start()
	}
	restart()
	s := specOfVersion("2", textFile("/etc/a", "two"))
	s.OS = &resource.NodeOS{Image: "os:2"}
	s.UpdatePolicy = &resource.UpdatePolicy{DownloadSchedule: utcSchedule("0 20 * * *", "2h"), UpdateSchedule: utcSchedule("0 2 * * *", "1h")}
	r.send("spec", s)
	require.Equal(t, windowPoll, r.runOnce(t.Context()))
	require.Zero(t, m.downloads)

	*now = time.Date(2026, 11, 2, 20, 0, 0, 0, time.UTC)
	for n, wait := range []time.Duration{downloadRetry.Min, 2 * downloadRetry.Min} {
		require.Equal(t, wait, r.runOnce(t.Context()))
		require.Equal(t, wait, r.runOnce(t.Context()), "it is not tried before")
		require.Equal(t, n+1, m.downloads)
		require.Equal(t, "False WaitingForWindow: version 2: it is applied from 2026-11-03T02:00:00Z on; until then the download of its OS image is tried again: no such registry", r.condition("Updating"))
		*now = now.Add(wait)
	}
	m.offline = false
	require.Positive(t, r.runOnce(t.Context()))
	require.Equal(t, "False WaitingForWindow: version 2: it is downloaded, and applied from 2026-11-03T02:00:00Z on", r.condition("Updating"))
	require.Equal(t, 3, m.downloads)
	require.Empty(t, m.staged, "nothing else is booted before the window")

	*now = time.Date(2026, 11, 3, 1, 59, 30, 0, time.UTC)
	restart()
	require.Equal(t, 30*time.Second, r.runOnce(t.Context()))
	*now = now.Add(30 * time.Second)
	require.PanicsWithValue(t, agentKilled{}, r.settle, "the reboot ends the agent")
	restart()
	r.settle()
	require.Equal(t, "2", r.reportNow(nil).RenderedVersion)
	require.Equal(t, "os:2", m.booted)
	require.True(t, m.fromStorage)
	require.Equal(t, 3, m.downloads)
	require.Empty(t, m.stored, "what is no longer needed is deleted")
}

// An image that was downloaded for a spec that was replaced is deleted, and kept if the next one has it.
func TestDownloadedOSImageOfAReplacedSpec(t *testing.T) {
	r, _, _ := newTestAgentWithClock(t)
	m := &imageHost{booted: "os:1", previous: "os:0", point: func(string) {}}
	r.o.os, r.image.os = m, m
	wanted := func(v, image string) {
		s := specOfVersion(v, textFile("/etc/a", v))
		s.OS = &resource.NodeOS{Image: image}
		s.UpdatePolicy = &resource.UpdatePolicy{UpdateSchedule: utcSchedule("0 2 * * *", "")}
		r.send("spec", s)
		require.Equal(t, windowPoll, r.runOnce(t.Context()))
	}
	wanted("1", "os:2")
	wanted("2", "os:2")
	require.Equal(t, []string{"os:2"}, m.stored)
	require.Equal(t, 1, m.downloads, "the image is there")
	wanted("3", "os:3")
	require.Equal(t, []string{"os:3"}, m.stored)
	wanted("4", "os:1")
	require.Empty(t, m.stored, "the host has booted it")
}

// An image that could not be downloaded in its window does not keep the node from updating: the switch downloads it.
func TestOSImageThatCannotBeDownloadedIsLeftToTheSwitch(t *testing.T) {
	r, now, _ := newTestAgentWithClock(t)
	m := &imageHost{booted: "os:1", previous: "os:0", offline: true, point: func(string) {}}
	r.o.os, r.image.os = m, m
	s := specOfVersion("1", textFile("/etc/a", "one"))
	s.OS = &resource.NodeOS{Image: "os:2"}
	s.UpdatePolicy = &resource.UpdatePolicy{DownloadSchedule: utcSchedule("0 12 * * *", "1h"), UpdateSchedule: utcSchedule("0 2 * * *", "")}
	r.send("spec", s)
	require.Positive(t, r.runOnce(t.Context()))
	require.Equal(t, 1, m.downloads)
	*now = now.Add(time.Hour)
	require.Positive(t, r.runOnce(t.Context()))
	require.Equal(t, 1, m.downloads, "its window is over")
	require.Equal(t, "False WaitingForWindow: version 1: it is downloaded but for its OS image, and applied from 2026-11-03T02:00:00Z on", r.condition("Updating"))
	*now = time.Date(2026, 11, 3, 2, 0, 0, 0, time.UTC)
	require.PanicsWithValue(t, agentKilled{}, r.settle, "the reboot ends the agent")
	require.Equal(t, "os:2", m.booted)
	require.False(t, m.fromStorage)
}
