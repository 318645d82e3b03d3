// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/topics/resource"
)

// healthyFacts are the answers when nothing is wrong.
func healthyFacts() Facts {
	now := time.Now()
	end := func(program string) *resource.LinkReport {
		return &resource.LinkReport{Program: program, Version: "v1", Now: resource.FormatTime(now), Links: []resource.Link{{
			Node: "n1", State: resource.Online, Since: resource.FormatTime(now.Add(-time.Hour)), InStep: true, Version: "v1",
			Behind: &resource.LinkLag{}, Connections: 1, CertificateExpires: resource.FormatTime(now.Add(1000 * time.Hour)),
		}}}
	}
	lamp := resource.Device{Metadata: resource.Meta{Name: "lamp"}, Status: resource.DeviceStatus{State: resource.Online}}
	return Facts{
		Node: "n1", HubAt: "http://hub", CoreAt: "http://core", MQTTAt: "mqtt://hub", HubTime: now, CoreTime: now,
		Hub: end("cloudhub"), Core: end("edgecore"), Devices: []resource.Device{lamp}, Mappers: map[string]string{"virtual": resource.Online},
	}
}

// timeBefore is a time before that of the facts.
func timeBefore(f *Facts, d time.Duration) string { return resource.FormatTime(f.HubTime.Add(-d)) }

func TestEachFaultHasAFindingWithAdvice(t *testing.T) {
	condition := func(f *Facts, kind, status, reason string) {
		f.Devices[0].Status.Conditions = []resource.Condition{{Type: kind, Status: status, Reason: reason, Message: "power"}}
	}
	for name, tt := range map[string]struct {
		make func(*Facts)
		mark Mark
		what string
	}{
		"damaged files":   {func(f *Facts) { f.Core.DamagedStores = map[string]string{"sessions": "1.log is damaged"} }, MarkWrong, "edgecore has damaged files (sessions): 1.log"},
		"disk full":       {func(f *Facts) { f.Core.FailingStores = map[string]string{"tree": "no space left on device"} }, MarkWrong, "edgecore can't store (tree): no space left"},
		"queue":           {func(f *Facts) { f.Hub.FullestQueue, f.Hub.FullestQueueClient = 0.9, "scada" }, MarkLook, `the queue of client "scada" on cloudhub is 90 % full`},
		"no room":         {func(f *Facts) { f.Core.Missed = 3 }, MarkLook, "edgecore had no room for 3 messages in sessions"},
		"clock":           {func(f *Facts) { f.Core.Now = timeBefore(f, 90*time.Minute) }, MarkWrong, "clock is 1h behind the hub's"},
		"clock, far away": {func(f *Facts) { s := 10.0; f.Core, f.Hub.Links[0].ClockAhead = nil, &s }, MarkLook, "clock is 10s ahead of the hub's"},
		"expired":         {func(f *Facts) { f.Core.Links[0].CertificateExpires = timeBefore(f, time.Hour) }, MarkWrong, "has expired"},
		"not renewed":     {func(f *Facts) { f.Core.Links[0].RenewalError = "the hub did not answer" }, MarkLook, "could not be renewed: the hub did not answer"},
		"expires soon":    {func(f *Facts) { f.Hub.Links[0].CertificateExpires = timeBefore(f, -50*time.Hour) }, MarkLook, "expires in 2d"},
		"versions":        {func(f *Facts) { f.Core.Version = "v2" }, MarkLook, "the hub has version v1, the core v2"},
		"versions, far":   {func(f *Facts) { f.Core, f.Hub.Links[0].Version = nil, "v2" }, MarkLook, "the hub has version v1, the core v2"},
		"two cores":       {func(f *Facts) { f.Hub.Links[0].Takeovers, f.Hub.Links[0].Since = 9, timeBefore(f, time.Second) }, MarkWrong, "taken over 9 times"},
		"older core data": {func(f *Facts) {
			f.Hub.Links[0].Anomaly = &resource.Anomaly{Time: timeBefore(f, time.Hour), Reason: resource.RolledBack, Message: "the core's data is older than what it had reported"}
		}, MarkLook, "1h ago: the core's data is older"},
		"silent": {func(f *Facts) {
			f.Hub.Links[0].LastSeen, f.Hub.Links[0].KeepAlive = timeBefore(f, 40*time.Second), 30
		}, MarkLook, "connected for 1h, last heard of 40s ago: that is longer than its keep-alive of 30s"},
		"a late copy": {
			func(f *Facts) { f.Hub.LateCopies = map[string]string{"standby": "it has what the hub had at noon"} }, MarkLook,
			"the copy of the hub's log by standby is behind: it has what the hub had at noon",
		},
		"little space":             {func(f *Facts) { f.Hub.LowSpace = "3 % of the disk with /data is free" }, MarkLook, "cloudhub: 3 % of the disk with /data is free"},
		"little space on the core": {func(f *Facts) { f.Core.LowSpace = "3 % of the disk with /data is free" }, MarkLook, "edgecore: 3 % of the disk with /data is free"},
		"little space, far": {func(f *Facts) {
			f.Core, f.Conditions = nil, []resource.Condition{{Type: resource.ConditionDiskPressure, Status: "True", Message: "3 % of the disk with /data is free"}}
		}, MarkLook, "the node's core: 3 % of the disk with /data is free"},
		"a foreign page": {func(f *Facts) {
			f.Hub.ForeignOrigin = &resource.ForeignOrigin{Origin: "https://app.example.com", Listener: "wss", Time: timeBefore(f, 90*time.Second)}
		}, MarkLook, "cloudhub refused a web page of https://app.example.com at its listener wss, 1m ago"},
		"half open": {func(f *Facts) { f.Core.Links[0].State = resource.Offline }, MarkWrong, "the hub has the node as connected"},
		"behind": {func(f *Facts) {
			l := &f.Hub.Links[0]
			l.InStep, l.Behind = false, &resource.LinkLag{Keys: 3, Seconds: 90}
		}, MarkWrong, "the node lacks 3 keys"},
		"catching up": {func(f *Facts) {
			l := &f.Core.Links[0]
			l.InStep, l.Behind = false, &resource.LinkLag{Keys: 3, Seconds: 2}
		}, MarkLook, "the hub is catching up"},
		"quota": {func(f *Facts) { f.Hub.Links[0].OverQuota = "3 keys, at most 2 are taken" }, MarkWrong, "3 keys, at most 2"},
		"another hub": {func(f *Facts) {
			l := &f.Hub.Links[0]
			f.Hub.Hub, l.OtherHub, l.InStep, l.Behind = "hub-00000002", "hub-00000001", false, &resource.LinkLag{}
		}, MarkWrong, "the node has what hub-00000001 gave it, and keeps it: this is another hub, hub-00000002, and changes nothing"},
		"quota, not in step": {func(f *Facts) {
			l := &f.Core.Links[0]
			l.OverQuota, l.InStep, l.Behind = "3 keys, at most 2 are taken", false, &resource.LinkLag{Keys: 3, Seconds: 90}
		}, MarkWrong, "3 keys, at most 2"},
		"own quota": {func(f *Facts) {
			f.Core.Owned = &resource.Usage{Keys: 100, MaxKeys: 100, Bytes: 10, MaxBytes: 1000}
		}, MarkWrong, "owns 100 keys of the 100 that it may: more are refused"},
		"own quota soon": {func(f *Facts) {
			f.Core.Owned = &resource.Usage{Keys: 10, MaxKeys: 100, Bytes: 950, MaxBytes: 1000}
		}, MarkLook, "owns 950 bytes of the 1000"},
		"beyond a limit": {func(f *Facts) {
			f.Core.Owned, f.Core.Refused = &resource.Usage{}, map[string]int64{"Quota": 3}
		}, MarkLook, "3 publishes were refused for a limit"},
		"dropped": {func(f *Facts) {
			f.Core.Streams = &resource.StreamReport{Dropped: map[string]int64{"full": 7, "expired": 0}}
		}, MarkLook, "7 messages for the hub were dropped since its queue of streams began: full"},
		"streams wait": {func(f *Facts) {
			f.Core.Streams = &resource.StreamReport{Waiting: 9, Seconds: 90}
		}, MarkLook, "9 messages of streams wait though the link is up"},
		"bridge": {func(f *Facts) {
			f.Core.Streams = &resource.StreamReport{RefusedRules: 2}
		}, MarkWrong, "refuses 2 bridge rules of"},
		"refused by name": {func(f *Facts) { f.MQTTErr = &client.Refused{Op: "connect", Code: 0x86} }, MarkLook, "did not let us in"},
		"MQTT not asked": {func(f *Facts) {
			f.MQTTErr = resource.Errorf(resource.Invalid, "server", "the context has no MQTT address")
		}, MarkLook, "MQTT was not asked"},
		"no MQTT":        {func(f *Facts) { f.MQTTErr = errors.New("connection refused") }, MarkWrong, "MQTT does not answer"},
		"hub not asked":  {func(f *Facts) { f.Hub, f.HubErr = nil, errors.New("refused") }, MarkLook, "the hub does not answer"},
		"core not there": {func(f *Facts) { f.Core, f.CoreGiven, f.CoreErr = nil, true, errors.New("refused") }, MarkWrong, "the core does not answer"},
		"mapper":         {func(f *Facts) { f.Mappers["virtual"] = resource.Offline }, MarkWrong, "mappers that are not running: virtual"},
		"no mapper": {func(f *Facts) {
			f.Mappers = nil
			condition(f, "Online", "Unknown", "NoMapper")
		}, MarkLook, "not online: lamp (power)"},
		"other mappers": {func(f *Facts) { condition(f, "Online", "Unknown", "NoMapper") }, MarkWrong, "not online: lamp (power)"},
		"no such node":  {func(f *Facts) { condition(f, "Online", "Unknown", "NoSuchNode") }, MarkWrong, "not online: lamp (power)"},
		"bad config":    {func(f *Facts) { condition(f, "Online", "False", "BadConfig") }, MarkWrong, "not online: lamp (power)"},
		"unreachable":   {func(f *Facts) { condition(f, "Online", "False", "Unreachable") }, MarkLook, "not online: lamp (power)"},
		"mapper's word": {func(f *Facts) { condition(f, "Online", "False", "Broken") }, MarkLook, "not online: lamp (power)"},
		"not heard":     {func(f *Facts) { condition(f, "Online", "Unknown", "NotHeard") }, MarkLook, "not online: lamp (power)"},
		"device":        {func(f *Facts) { f.Devices[0].Status.State = resource.Offline }, MarkLook, "not online: lamp"},
		"value":         {func(f *Facts) { condition(f, "Refused", "True", "Refused") }, MarkLook, "values that devices refused: lamp (power)"},
		"conflict":      {func(f *Facts) { condition(f, "TwinConflict", "True", "OverrideConflict") }, MarkLook, "disagree about: lamp (power)"},
		"waiting":       {func(f *Facts) { condition(f, "InSync", "False", "Waiting") }, MarkLook, "not as they should be yet: lamp"},
		"model": {func(f *Facts) {
			condition(f, "InSync", "Unknown", "ModelMissing")
			f.Devices[0].Spec.DeviceModelRef.Name = "dimmable"
		}, MarkWrong, "model does not exist: lamp (DeviceModel dimmable)"},
		"overridden": {func(f *Facts) {
			condition(f, "InSync", "False", "Waiting")
			f.Devices[0].Status.Twin = map[string]resource.TwinProperty{
				"level": {Override: &resource.TwinValue{Value: "40", Origin: "switch"}}, "power": {InSync: true},
			}
		}, MarkLook, "overridden on the node: lamp (level: 40, by switch)"},
		"spec": {func(f *Facts) {
			f.Conditions = []resource.Condition{{Type: "SpecRendered", Status: "False", Reason: "PathConflict", Message: "config a and b write /etc/x"}}
		}, MarkWrong, "the node's spec can't be rendered: PathConflict: config a and b write /etc/x"},
		"lagging unknown":  {func(f *Facts) { f.Hub.Links[0].Behind = nil }, MarkLook, "not known"},
		"offline, no core": {func(f *Facts) { f.Core, f.Hub.Links[0].State, f.Devices = nil, resource.Offline, nil }, MarkWrong, "not connected for 1h"},
		"rejected": {func(f *Facts) {
			f.Hub.Links[0].Rejected = &resource.Rejection{Count: 4, Time: timeBefore(f, time.Minute), Reason: "bad user name or password"}
		}, MarkLook, "refused 4 connections"},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthyFacts()
			tt.make(&f)
			d := Diagnose(f)
			out := d.Text(false)
			found := false
			for _, x := range d.Findings {
				if x.Mark != MarkOK {
					require.Equal(t, tt.mark, x.Mark, "%s", out)
					require.Contains(t, x.Message, tt.what)
					require.NotEmpty(t, x.Advice, "everything has its advice")
					found = true
				}
			}
			require.True(t, found, "%s", out)
			if tt.mark == MarkWrong {
				require.Equal(t, exitcode.Code(1), d.ExitError())
			} else if f.Hub != nil {
				require.NoError(t, d.ExitError())
			}
		})
	}
}

func TestAHealthyNodeHasNoFindings(t *testing.T) {
	d := Diagnose(healthyFacts())
	for _, x := range d.Findings {
		require.Equal(t, MarkOK, x.Mark, x.Message)
	}
	require.Equal(t, "all is well", d.Verdict)
	require.Equal(t, exitcode.Code(2), Diagnose(Facts{Node: "n1", HubErr: errors.New("x"), CoreErr: errors.New("x")}).ExitError())
}

func TestAllIsWellOnlyIfTheHubWasAsked(t *testing.T) {
	f := healthyFacts()
	f.Hub, f.HubErr = nil, errors.New("no answer")
	d := Diagnose(f)
	require.Contains(t, d.Verdict, "can't tell: the hub does not answer")
	require.Equal(t, exitcode.Code(2), d.ExitError())
	f.Core.FailingStores = map[string]string{"tree": "no space left on device"}
	d = Diagnose(f)
	require.Equal(t, "something is wrong", d.Verdict)
	require.Equal(t, exitcode.Code(1), d.ExitError())
}

func TestDevicesWithOneReasonAreNamedTogether(t *testing.T) {
	f := healthyFacts()
	f.Devices = nil
	for name, message := range map[string]string{"a": "refused", "b": "no answer", "c": "refused"} {
		d := resource.Device{Metadata: resource.Meta{Name: name}}
		d.Status.Conditions = []resource.Condition{{Type: "Online", Status: "False", Reason: "Unreachable", Message: message}}
		f.Devices = append(f.Devices, d)
	}
	slices.SortFunc(f.Devices, func(a, b resource.Device) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	out := Diagnose(f).Text(false)
	require.Contains(t, out, "! devices that are not online: a, c (refused)\n")
	require.Contains(t, out, "! devices that are not online: b (no answer)\n")
}

func TestANodeThatWorksAloneIsWell(t *testing.T) {
	alone := func() Facts {
		f := healthyFacts()
		f.Core.Links[0] = resource.Link{Node: "n1", State: resource.LinkAlone}
		return f
	}
	unknown, without, linkedBefore, ill := alone(), alone(), alone(), alone()
	unknown.Hub.Links = nil
	linkedBefore.Mappers["virtual"] = resource.Offline // as the hub heard last
	without.Hub, without.HubErr = nil, errors.New("connection refused")
	ill.Core.FailingStores = map[string]string{"tree": "no space left on device"}
	for _, f := range []Facts{alone(), unknown, without, linkedBefore} {
		d := Diagnose(f)
		require.Equal(t, "all is well: the node works alone", d.Verdict, d.Findings)
		require.NoError(t, d.ExitError())
	}
	require.Equal(t, exitcode.Code(1), Diagnose(ill).ExitError())
}

func TestSummaryIsTheWorstOfEach(t *testing.T) {
	r := *healthyFacts().Hub
	away := r.Links[0]
	away.Node, away.State, away.LastError = "n2", resource.Offline, "keep-alive timeout"
	r.Links = append([]resource.Link{away}, r.Links...)
	nodes := []Facts{{Node: "n2", Hub: &resource.LinkReport{Now: r.Now, Links: r.Links[:1]}}, healthyFacts()}
	s := SummariseNodes(r, nodes)
	require.Empty(t, s.Hub)
	require.Equal(t, MarkWrong, s.Links[0].Mark)
	require.Contains(t, s.Links[0].Message, "keep-alive timeout")
	require.Equal(t, MarkOK, s.Links[1].Mark)
	require.Equal(t, exitcode.Code(1), s.ExitError())
}

func TestTheNodeAloneTellsOfAnotherHub(t *testing.T) {
	f := healthyFacts()
	f.Hub, f.HubErr = nil, errors.New("refused")
	f.Core.Hub, f.Core.Links[0].OtherHub = "hub-00000002", "hub-00000001"
	d := Diagnose(f)
	require.True(t, slices.ContainsFunc(d.Findings, func(x Finding) bool {
		return x.Mark == MarkWrong && strings.Contains(x.Message, "the node has what hub-00000001 gave it, and keeps it: this is another hub, hub-00000002")
	}), "%v", d.Findings)
}

// When a node has just left, the hub still shows its devices as they were: nobody says that this is how they are.
func TestDevicesOfANodeThatLeftAreNotSaidToBeOnline(t *testing.T) {
	f := healthyFacts()
	l := &f.Hub.Links[0]
	l.State, l.Since, l.LastError = resource.Offline, timeBefore(&f, 7*time.Second), "keep-alive timeout"
	f.Core = nil
	out := Diagnose(f).Text(false)
	require.Contains(t, out, "✗ not connected for 7s: keep-alive timeout")
	require.NotContains(t, out, "all online")
	require.Contains(t, out, "! 1 device: their state is not known since the node disconnected; not connected for 7s")
}

// What is said of a node among all is what is worst of what is said of it alone.
func TestAllAndOneAgree(t *testing.T) {
	for name, change := range map[string]func(*Facts){
		"well":   func(*Facts) {},
		"mapper": func(f *Facts) { f.Mappers["virtual"] = resource.Offline },
		"device": func(f *Facts) {
			f.Devices[0].Status.Conditions = []resource.Condition{{Type: "Refused", Status: "True", Reason: "Refused", Message: "power"}}
		},
		"behind": func(f *Facts) {
			f.Core.Links[0].Behind, f.Core.Links[0].InStep = &resource.LinkLag{Keys: 3, Seconds: 90}, false
		},
		"left":            func(f *Facts) { f.Hub.Links[0].State, f.Core = resource.Offline, nil },
		"never connected": func(f *Facts) { f.Hub.Links, f.Core, f.Joined = nil, nil, "2026-11-28T11:19:06.000Z" },
	} {
		f := healthyFacts()
		change(&f)
		one, all := Diagnose(f), SummariseNodes(*f.Hub, []Facts{f})
		require.Equal(t, one.ExitError(), all.ExitError(), name)
		require.Equal(t, one.HasMark(MarkWrong), all.Links[0].Mark == MarkWrong, name)
		require.Equal(t, one.HasMark(MarkLook) || one.HasMark(MarkWrong), all.Links[0].Mark != MarkOK, name)
		require.True(t, slices.ContainsFunc(one.Findings, func(x Finding) bool { return x.Message == all.Links[0].Message }), name)
	}
}

// A hub that wants to know who asks has answered: the advice is to sign in, not to look for the hub.
func TestAHubThatRefusesIsThere(t *testing.T) {
	refused := resource.Errorf(resource.Unauthorized, "", "not signed in")
	there := healthyFacts()
	there.Hub, there.HubErr = nil, refused
	for name, c := range map[string]struct {
		facts   Facts
		verdict string
	}{
		"from elsewhere": {Facts{Node: "n1", HubErr: refused}, "can't tell: the hub did not let us in"},
		"on the node":    {there, "can't tell: the hub did not let us in; the core says that it is connected"},
	} {
		d := Diagnose(c.facts)
		out := d.Text(false)
		require.Equal(t, c.verdict, d.Verdict, name)
		require.Contains(t, out, "did not let us in: not signed in", name)
		require.Contains(t, out, "sign in with --cert and --key", name)
		require.NotContains(t, out, "is cloudhub running", name)
	}
}

// A node that nobody registered has the right certificate: the advice is to apply a Node.
func TestARefusedNodeIsAdvisedToBeApplied(t *testing.T) {
	require.Contains(t, connectAdvice("connect refused: bad user name or password (0x86): the certificate is for n1, which is neither a user of "+
		"auth.users nor a Node that there is: list the user, or apply a Node of that name (auth.nodes)"), "apply a Node")
	require.Contains(t, connectAdvice("bad user name or password (0x86): the certificate is for n2, but this node is n1"), "belong to two nodes")
}

// Within the keep-alive after a cut nobody can know of it; how long ago the node was heard of is said in any case.
func TestDoctorSaysWhenANodeWasLastHeardOf(t *testing.T) {
	for silent, want := range map[time.Duration]string{0: "last heard of just now", 29 * time.Second: "last heard of 29s ago"} {
		f := healthyFacts()
		f.Hub.Links[0].LastSeen, f.Hub.Links[0].KeepAlive = timeBefore(&f, silent), 30
		d := Diagnose(f)
		require.Contains(t, d.Text(false), "✓ connected for 1h, "+want)
		require.Equal(t, "all is well", d.Verdict)
	}
}

// What was long ago is no finding: the page may be gone, and the file of settings another one.
func TestAnOldRefusalOfAWebPageIsNotAFinding(t *testing.T) {
	f := healthyFacts()
	f.Hub.ForeignOrigin = &resource.ForeignOrigin{Origin: "https://app.example.com", Listener: "wss", Time: timeBefore(&f, time.Hour)}
	require.Equal(t, "all is well", Diagnose(f).Verdict)
}
