package doctor

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
func healthyFacts() facts {
	now := time.Now()
	end := func(program string) *resource.LinkReport {
		return &resource.LinkReport{Program: program, Version: "v1", Now: resource.FormatTime(now), Links: []resource.Link{{
			Node: "n1", State: resource.Online, Since: resource.FormatTime(now.Add(-time.Hour)), InStep: true, Version: "v1",
			Behind: &resource.LinkLag{}, Connections: 1, CertificateExpires: resource.FormatTime(now.Add(1000 * time.Hour)),
		}}}
	}
	lamp := resource.Device{Metadata: resource.Meta{Name: "lamp"}, Status: resource.DeviceStatus{State: resource.Online}}
	return facts{
		node: "n1", hubAt: "http://hub", coreAt: "http://core", mqttAt: "mqtt://hub", hubTime: now, coreTime: now,
		hub: end("cloudhub"), core: end("edgecore"), devices: []resource.Device{lamp}, mappers: map[string]string{"virtual": resource.Online},
	}
}

// timeBefore is a time before that of the facts.
func timeBefore(f *facts, d time.Duration) string { return resource.FormatTime(f.hubTime.Add(-d)) }

func TestEachFaultHasAFindingWithAdvice(t *testing.T) {
	condition := func(f *facts, kind, status, reason string) {
		f.devices[0].Status.Conditions = []resource.Condition{{Type: kind, Status: status, Reason: reason, Message: "power"}}
	}
	for name, tt := range map[string]struct {
		make func(*facts)
		mark mark
		what string
	}{
		"damaged files":   {func(f *facts) { f.core.DamagedStores = map[string]string{"sessions": "1.log is damaged"} }, markWrong, "edgecore has damaged files (sessions): 1.log"},
		"disk full":       {func(f *facts) { f.core.FailingStores = map[string]string{"tree": "no space left on device"} }, markWrong, "edgecore can't store (tree): no space left"},
		"queue":           {func(f *facts) { f.hub.FullestQueue, f.hub.FullestQueueClient = 0.9, "scada" }, markLook, `the queue of client "scada" on cloudhub is 90 % full`},
		"no room":         {func(f *facts) { f.core.Missed = 3 }, markLook, "edgecore had no room for 3 messages in sessions"},
		"clock":           {func(f *facts) { f.core.Now = timeBefore(f, 90*time.Minute) }, markWrong, "clock is 1h behind the hub's"},
		"clock, far away": {func(f *facts) { s := 10.0; f.core, f.hub.Links[0].ClockAhead = nil, &s }, markLook, "clock is 10s ahead of the hub's"},
		"expired":         {func(f *facts) { f.core.Links[0].CertificateExpires = timeBefore(f, time.Hour) }, markWrong, "has expired"},
		"not renewed":     {func(f *facts) { f.core.Links[0].RenewalError = "the hub did not answer" }, markLook, "could not be renewed: the hub did not answer"},
		"expires soon":    {func(f *facts) { f.hub.Links[0].CertificateExpires = timeBefore(f, -50*time.Hour) }, markLook, "expires in 2d"},
		"versions":        {func(f *facts) { f.core.Version = "v2" }, markLook, "the hub has version v1, the core v2"},
		"versions, far":   {func(f *facts) { f.core, f.hub.Links[0].Version = nil, "v2" }, markLook, "the hub has version v1, the core v2"},
		"two cores":       {func(f *facts) { f.hub.Links[0].Takeovers, f.hub.Links[0].Since = 9, timeBefore(f, time.Second) }, markWrong, "taken over 9 times"},
		"older core data": {func(f *facts) {
			f.hub.Links[0].Anomaly = &resource.Anomaly{Time: timeBefore(f, time.Hour), Reason: resource.RolledBack, Message: "the core's data is older than what it had reported"}
		}, markLook, "1h ago: the core's data is older"},
		"silent": {func(f *facts) {
			f.hub.Links[0].LastSeen, f.hub.Links[0].KeepAlive = timeBefore(f, 40*time.Second), 30
		}, markLook, "connected for 1h, last heard of 40s ago: that is longer than its keep-alive of 30s"},
		"little space":             {func(f *facts) { f.hub.LowSpace = "3 % of the disk with /data is free" }, markLook, "cloudhub: 3 % of the disk with /data is free"},
		"little space on the core": {func(f *facts) { f.core.LowSpace = "3 % of the disk with /data is free" }, markLook, "edgecore: 3 % of the disk with /data is free"},
		"little space, far": {func(f *facts) {
			f.core, f.conditions = nil, []resource.Condition{{Type: resource.ConditionDiskPressure, Status: "True", Message: "3 % of the disk with /data is free"}}
		}, markLook, "the node's core: 3 % of the disk with /data is free"},
		"a foreign page": {func(f *facts) {
			f.hub.ForeignOrigin = &resource.ForeignOrigin{Origin: "https://app.example.com", Listener: "wss", Time: timeBefore(f, 90*time.Second)}
		}, markLook, "cloudhub refused a web page of https://app.example.com at its listener wss, 1m ago"},
		"half open": {func(f *facts) { f.core.Links[0].State = resource.Offline }, markWrong, "the hub has the node as connected"},
		"behind": {func(f *facts) {
			l := &f.hub.Links[0]
			l.InStep, l.Behind = false, &resource.LinkLag{Keys: 3, Seconds: 90}
		}, markWrong, "the node lacks 3 keys"},
		"catching up": {func(f *facts) {
			l := &f.core.Links[0]
			l.InStep, l.Behind = false, &resource.LinkLag{Keys: 3, Seconds: 2}
		}, markLook, "the hub is catching up"},
		"quota": {func(f *facts) { f.hub.Links[0].OverQuota = "3 keys, at most 2 are taken" }, markWrong, "3 keys, at most 2"},
		"another hub": {func(f *facts) {
			l := &f.hub.Links[0]
			f.hub.Hub, l.OtherHub, l.InStep, l.Behind = "hub-00000002", "hub-00000001", false, &resource.LinkLag{}
		}, markWrong, "the node has what hub-00000001 gave it, and keeps it: this is another hub, hub-00000002, and changes nothing"},
		"quota, not in step": {func(f *facts) {
			l := &f.core.Links[0]
			l.OverQuota, l.InStep, l.Behind = "3 keys, at most 2 are taken", false, &resource.LinkLag{Keys: 3, Seconds: 90}
		}, markWrong, "3 keys, at most 2"},
		"own quota": {func(f *facts) {
			f.core.Owned = &resource.Usage{Keys: 100, MaxKeys: 100, Bytes: 10, MaxBytes: 1000}
		}, markWrong, "owns 100 keys of the 100 that it may: more are refused"},
		"own quota soon": {func(f *facts) {
			f.core.Owned = &resource.Usage{Keys: 10, MaxKeys: 100, Bytes: 950, MaxBytes: 1000}
		}, markLook, "owns 950 bytes of the 1000"},
		"beyond a limit": {func(f *facts) {
			f.core.Owned, f.core.Refused = &resource.Usage{}, map[string]int64{"Quota": 3}
		}, markLook, "3 publishes were refused for a limit"},
		"dropped": {func(f *facts) {
			f.core.Streams = &resource.StreamReport{Dropped: map[string]int64{"full": 7, "expired": 0}}
		}, markLook, "7 messages for the hub were dropped since its queue of streams began: full"},
		"streams wait": {func(f *facts) {
			f.core.Streams = &resource.StreamReport{Waiting: 9, Seconds: 90}
		}, markLook, "9 messages of streams wait though the link is up"},
		"bridge": {func(f *facts) {
			f.core.Streams = &resource.StreamReport{RefusedRules: 2}
		}, markWrong, "refuses 2 bridge rules of"},
		"refused by name": {func(f *facts) { f.mqttErr = &client.Refused{Op: "connect", Code: 0x86} }, markLook, "did not let us in"},
		"MQTT not asked": {func(f *facts) {
			f.mqttErr = resource.Errorf(resource.Invalid, "server", "the context has no MQTT address")
		}, markLook, "MQTT was not asked"},
		"no MQTT":        {func(f *facts) { f.mqttErr = errors.New("connection refused") }, markWrong, "MQTT does not answer"},
		"hub not asked":  {func(f *facts) { f.hub, f.hubErr = nil, errors.New("refused") }, markLook, "the hub does not answer"},
		"core not there": {func(f *facts) { f.core, f.coreGiven, f.coreErr = nil, true, errors.New("refused") }, markWrong, "the core does not answer"},
		"mapper":         {func(f *facts) { f.mappers["virtual"] = resource.Offline }, markWrong, "mappers that are not running: virtual"},
		"no mapper": {func(f *facts) {
			f.mappers = nil
			condition(f, "Online", "Unknown", "NoMapper")
		}, markLook, "not online: lamp (power)"},
		"other mappers": {func(f *facts) { condition(f, "Online", "Unknown", "NoMapper") }, markWrong, "not online: lamp (power)"},
		"no such node":  {func(f *facts) { condition(f, "Online", "Unknown", "NoSuchNode") }, markWrong, "not online: lamp (power)"},
		"bad config":    {func(f *facts) { condition(f, "Online", "False", "BadConfig") }, markWrong, "not online: lamp (power)"},
		"unreachable":   {func(f *facts) { condition(f, "Online", "False", "Unreachable") }, markLook, "not online: lamp (power)"},
		"mapper's word": {func(f *facts) { condition(f, "Online", "False", "Broken") }, markLook, "not online: lamp (power)"},
		"not heard":     {func(f *facts) { condition(f, "Online", "Unknown", "NotHeard") }, markLook, "not online: lamp (power)"},
		"device":        {func(f *facts) { f.devices[0].Status.State = resource.Offline }, markLook, "not online: lamp"},
		"value":         {func(f *facts) { condition(f, "Refused", "True", "Refused") }, markLook, "values that devices refused: lamp (power)"},
		"conflict":      {func(f *facts) { condition(f, "TwinConflict", "True", "OverrideConflict") }, markLook, "disagree about: lamp (power)"},
		"waiting":       {func(f *facts) { condition(f, "InSync", "False", "Waiting") }, markLook, "not as they should be yet: lamp"},
		"model": {func(f *facts) {
			condition(f, "InSync", "Unknown", "ModelMissing")
			f.devices[0].Spec.DeviceModelRef.Name = "dimmable"
		}, markWrong, "model does not exist: lamp (DeviceModel dimmable)"},
		"overridden": {func(f *facts) {
			condition(f, "InSync", "False", "Waiting")
			f.devices[0].Status.Twin = map[string]resource.TwinProperty{
				"level": {Override: &resource.TwinValue{Value: "40", Origin: "switch"}}, "power": {InSync: true},
			}
		}, markLook, "overridden on the node: lamp (level: 40, by switch)"},
		"spec": {func(f *facts) {
			f.conditions = []resource.Condition{{Type: "SpecRendered", Status: "False", Reason: "PathConflict", Message: "config a and b write /etc/x"}}
		}, markWrong, "the node's spec can't be rendered: PathConflict: config a and b write /etc/x"},
		"lagging unknown":  {func(f *facts) { f.hub.Links[0].Behind = nil }, markLook, "not known"},
		"offline, no core": {func(f *facts) { f.core, f.hub.Links[0].State, f.devices = nil, resource.Offline, nil }, markWrong, "not connected for 1h"},
		"rejected": {func(f *facts) {
			f.hub.Links[0].Rejected = &resource.Rejection{Count: 4, Time: timeBefore(f, time.Minute), Reason: "bad user name or password"}
		}, markLook, "refused 4 connections"},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthyFacts()
			tt.make(&f)
			d := diagnose(f)
			out := d.text(false)
			found := false
			for _, x := range d.Findings {
				if x.Mark != markOK {
					require.Equal(t, tt.mark, x.Mark, "%s", out)
					require.Contains(t, x.Message, tt.what)
					require.NotEmpty(t, x.Advice, "everything has its advice")
					found = true
				}
			}
			require.True(t, found, "%s", out)
			if tt.mark == markWrong {
				require.Equal(t, exitcode.Code(1), d.exitError())
			} else if f.hub != nil {
				require.NoError(t, d.exitError())
			}
		})
	}
}

func TestAHealthyNodeHasNoFindings(t *testing.T) {
	d := diagnose(healthyFacts())
	for _, x := range d.Findings {
		require.Equal(t, markOK, x.Mark, x.Message)
	}
	require.Equal(t, "all is well", d.Verdict)
	require.Equal(t, exitcode.Code(2), diagnose(facts{node: "n1", hubErr: errors.New("x"), coreErr: errors.New("x")}).exitError())
}

func TestAllIsWellOnlyIfTheHubWasAsked(t *testing.T) {
	f := healthyFacts()
	f.hub, f.hubErr = nil, errors.New("no answer")
	d := diagnose(f)
	require.Contains(t, d.Verdict, "can't tell: the hub does not answer")
	require.Equal(t, exitcode.Code(2), d.exitError())
	f.core.FailingStores = map[string]string{"tree": "no space left on device"}
	d = diagnose(f)
	require.Equal(t, "something is wrong", d.Verdict)
	require.Equal(t, exitcode.Code(1), d.exitError())
}

func TestDevicesWithOneReasonAreNamedTogether(t *testing.T) {
	f := healthyFacts()
	f.devices = nil
	for name, message := range map[string]string{"a": "refused", "b": "no answer", "c": "refused"} {
		d := resource.Device{Metadata: resource.Meta{Name: name}}
		d.Status.Conditions = []resource.Condition{{Type: "Online", Status: "False", Reason: "Unreachable", Message: message}}
		f.devices = append(f.devices, d)
	}
	slices.SortFunc(f.devices, func(a, b resource.Device) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	out := diagnose(f).text(false)
	require.Contains(t, out, "! devices that are not online: a, c (refused)\n")
	require.Contains(t, out, "! devices that are not online: b (no answer)\n")
}

func TestANodeThatWorksAloneIsWell(t *testing.T) {
	alone := func() facts {
		f := healthyFacts()
		f.core.Links[0] = resource.Link{Node: "n1", State: resource.LinkAlone}
		return f
	}
	unknown, without, linkedBefore, ill := alone(), alone(), alone(), alone()
	unknown.hub.Links = nil
	linkedBefore.mappers["virtual"] = resource.Offline // as the hub heard last
	without.hub, without.hubErr = nil, errors.New("connection refused")
	ill.core.FailingStores = map[string]string{"tree": "no space left on device"}
	for _, f := range []facts{alone(), unknown, without, linkedBefore} {
		d := diagnose(f)
		require.Equal(t, "all is well: the node works alone", d.Verdict, d.Findings)
		require.NoError(t, d.exitError())
	}
	require.Equal(t, exitcode.Code(1), diagnose(ill).exitError())
}

func TestSummaryIsTheWorstOfEach(t *testing.T) {
	r := *healthyFacts().hub
	away := r.Links[0]
	away.Node, away.State, away.LastError = "n2", resource.Offline, "keep-alive timeout"
	r.Links = append([]resource.Link{away}, r.Links...)
	nodes := []facts{{node: "n2", hub: &resource.LinkReport{Now: r.Now, Links: r.Links[:1]}}, healthyFacts()}
	s := summariseNodes(r, nodes)
	require.Empty(t, s.Hub)
	require.Equal(t, markWrong, s.Links[0].Mark)
	require.Contains(t, s.Links[0].Message, "keep-alive timeout")
	require.Equal(t, markOK, s.Links[1].Mark)
	require.Equal(t, exitcode.Code(1), s.exitError())
}

func TestTheNodeAloneTellsOfAnotherHub(t *testing.T) {
	f := healthyFacts()
	f.hub, f.hubErr = nil, errors.New("refused")
	f.core.Hub, f.core.Links[0].OtherHub = "hub-00000002", "hub-00000001"
	d := diagnose(f)
	require.True(t, slices.ContainsFunc(d.Findings, func(x finding) bool {
		return x.Mark == markWrong && strings.Contains(x.Message, "the node has what hub-00000001 gave it, and keeps it: this is another hub, hub-00000002")
	}), "%v", d.Findings)
}

// When a node has just left, the hub still shows its devices as they were: nobody says that this is how they are.
func TestDevicesOfANodeThatLeftAreNotSaidToBeOnline(t *testing.T) {
	f := healthyFacts()
	l := &f.hub.Links[0]
	l.State, l.Since, l.LastError = resource.Offline, timeBefore(&f, 7*time.Second), "keep-alive timeout"
	f.core = nil
	out := diagnose(f).text(false)
	require.Contains(t, out, "✗ not connected for 7s: keep-alive timeout")
	require.NotContains(t, out, "all online")
	require.Contains(t, out, "! 1 device: their state is not known since the node disconnected; not connected for 7s")
}

// What is said of a node among all is what is worst of what is said of it alone.
func TestAllAndOneAgree(t *testing.T) {
	for name, change := range map[string]func(*facts){
		"well":   func(*facts) {},
		"mapper": func(f *facts) { f.mappers["virtual"] = resource.Offline },
		"device": func(f *facts) {
			f.devices[0].Status.Conditions = []resource.Condition{{Type: "Refused", Status: "True", Reason: "Refused", Message: "power"}}
		},
		"behind": func(f *facts) {
			f.core.Links[0].Behind, f.core.Links[0].InStep = &resource.LinkLag{Keys: 3, Seconds: 90}, false
		},
		"left": func(f *facts) { f.hub.Links[0].State, f.core = resource.Offline, nil },
	} {
		f := healthyFacts()
		change(&f)
		one, all := diagnose(f), summariseNodes(*f.hub, []facts{f})
		require.Equal(t, one.exitError(), all.exitError(), name)
		require.Equal(t, one.hasMark(markWrong), all.Links[0].Mark == markWrong, name)
		require.Equal(t, one.hasMark(markLook) || one.hasMark(markWrong), all.Links[0].Mark != markOK, name)
		require.True(t, slices.ContainsFunc(one.Findings, func(x finding) bool { return x.Message == all.Links[0].Message }), name)
	}
}

// A hub that wants to know who asks has answered: the advice is to sign in, not to look for the hub.
func TestAHubThatRefusesIsThere(t *testing.T) {
	refused := resource.Errorf(resource.Unauthorized, "", "not signed in")
	there := healthyFacts()
	there.hub, there.hubErr = nil, refused
	for name, c := range map[string]struct {
		facts   facts
		verdict string
	}{
		"from elsewhere": {facts{node: "n1", hubErr: refused}, "can't tell: the hub did not let us in"},
		"on the node":    {there, "can't tell: the hub did not let us in; the core says that it is connected"},
	} {
		d := diagnose(c.facts)
		out := d.text(false)
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
		f.hub.Links[0].LastSeen, f.hub.Links[0].KeepAlive = timeBefore(&f, silent), 30
		d := diagnose(f)
		require.Contains(t, d.text(false), "✓ connected for 1h, "+want)
		require.Equal(t, "all is well", d.Verdict)
	}
}

// What was long ago is no finding: the page may be gone, and the file of settings another one.
func TestAnOldRefusalOfAWebPageIsNotAFinding(t *testing.T) {
	f := healthyFacts()
	f.hub.ForeignOrigin = &resource.ForeignOrigin{Origin: "https://app.example.com", Listener: "wss", Time: timeBefore(&f, time.Hour)}
	require.Equal(t, "all is well", diagnose(f).Verdict)
}
