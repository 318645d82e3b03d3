// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/wire"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestALateHandlerIsAskedAtOnce(t *testing.T) {
	r := newTestDiscovery(t, func(o *Options) { o.Timing.Retry = backoff.Backoff{Min: time.Hour, Max: time.Hour} })
	r.set("discovery/cams", discoveryRequest("onvif", "1", "find: all"))
	f := r.newFake("onvif.sock", "a", "b").start().register(wire.Registration{Name: "onvif", Shared: true})
	require.Equal(t, "find: all", f.nextAsked().Details)
	r.awaitFound("cams", "a", "b")
	require.JSONEq(t, `{"id":"a","shared":true}`, r.below("discovery/cams/instances/")[resource.DiscoveredName("a")])
	r.awaitReport("cams", `{"version":"1","state":"Accepted","endpoints":[{"endpoint":"`+f.path+`","state":"Accepted"}]}`)
	// What is gone is gone at once.
	f.find("b", "c")
	r.awaitFound("cams", "b", "c")
	f.find()
	r.awaitFound("cams")
	// A handler of another name has nothing to do with it, and one that comes back is asked at once.
	f.server.Stop()
	r.awaitReport("cams", `"state":"Failing"`)
	f.find("d")
	f.start().register(wire.Registration{Name: "onvif", Shared: true})
	r.awaitFound("cams", "d")
}

// TestAHandlerThatRegistersBeforeItAcceptsConnectionsIsAskedWhenItDoes has pauses that nothing but a registration ends.
func TestAHandlerThatRegistersBeforeItAcceptsConnectionsIsAskedWhenItDoes(t *testing.T) {
	r := newTestDiscovery(t, func(o *Options) {
		o.Timing.Retry, o.Timing.ProbeTimeout = backoff.Backoff{Min: time.Hour, Max: time.Hour}, time.Minute
	})
	r.set("discovery/cams", discoveryRequest("onvif", "1", ""))
	f := r.newFake("onvif.sock", "a").start().register(wire.Registration{Name: "onvif"})
	r.awaitFound("cams", "a")
	for _, found := range []string{"b", "c"} {
		f.server.Stop()
		r.awaitReport("cams", `"state":"Failing"`)
		f.find(found)
		l, err := rawgrpc.ListenUnix(f.path)
		require.NoError(t, err)
		f.register(wire.Registration{Name: "onvif"})
		conn, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, conn.Close()) // it was asked in vain
		require.NoError(t, l.Close())
		f.start()
		r.awaitFound("cams", found)
	}
}

func TestRegistrationsOutliveARestart(t *testing.T) {
	r := newTestDiscovery(t, nil)
	f := r.newFake("onvif.sock", "a", "b").start().register(wire.Registration{Name: "onvif"})
	r.set("discovery/cams", discoveryRequest("onvif", "1", ""))
	r.set("discovery/shell", discoveryRequest("shell", "1", ""))
	r.awaitFound("cams", "a", "b")
	r.stop()
	f.find("b", "c")
	// What other clients publish is left alone, whatever it is called.
	r.set("discovery/cams/instances/mine", resource.DiscoveredDevice{ID: "by-hand"})
	shell := resource.DiscoveredName("x")
	r.set("discovery/shell/instances/"+shell, resource.DiscoveredDevice{ID: "x"})
	r.set("discovery/shell/handler", resource.HandlerReport{State: "Accepted"})
	r.start()
	r.await("the device that went meanwhile is removed, the other client's is not", func() bool {
		got := r.below("discovery/cams/instances/")
		return len(got) == 3 && got[resource.DiscoveredName("b")] != "" && got[resource.DiscoveredName("c")] != "" && got["mine"] != ""
	})
	require.Contains(t, r.below("discovery/shell/instances/"), shell)
	require.Contains(t, r.below("discovery/shell/"), "handler")
}

func TestDevicesOfAHandlerThatIsAwayStayForAWhile(t *testing.T) {
	r := newTestDiscovery(t, func(o *Options) { o.Config.Handlers.Grace = time.Second })
	f := r.newFake("onvif.sock", "a", "b").start().register(wire.Registration{Name: "onvif"})
	r.set("discovery/cams", discoveryRequest("onvif", "1", ""))
	r.awaitFound("cams", "a", "b")
	f.server.Stop()
	r.awaitReport("cams", `"state":"Failing"`)
	require.Len(t, r.below("discovery/cams/instances/"), 2)
	r.awaitFound("cams")
}

// What a handler found goes, and its report does, when the handler was taken away while nothing ran that could have removed it.
func TestAHandlerIsTakenAwayWhileNothingRuns(t *testing.T) {
	r := newTestDiscovery(t, func(o *Options) { o.Config.Handlers.Grace = time.Hour })
	r.newFake("onvif.sock", "a", "b").start().register(wire.Registration{Name: "onvif"})
	r.set("discovery/cams", discoveryRequest("onvif", "1", ""))
	r.set("discovery/cams/instances/mine", resource.DiscoveredDevice{ID: "by-hand"})
	r.awaitReport("cams", `"state":"Accepted"`)
	found := func() int { return len(r.below("discovery/cams/instances/")) }
	r.await("both are found", func() bool { return found() == 3 })
	r.stop()
	require.NoError(t, os.Remove(filepath.Join(r.o.Config.Data.Dir, registrationsName)))
	r.start()
	r.awaitReport("cams", `"state":"NoHandler"`)
	require.Equal(t, 3, found(), "it may come back")
	r.stop()
	r.o.Config.Handlers.Grace = time.Millisecond
	r.start()
	r.await("what it found and its report are removed", func() bool { return found() == 1 && r.below("discovery/cams/")["handler"] == "" })
	require.Contains(t, r.below("discovery/cams/instances/"), "mine")
}

func TestOneOfTwoHandlersIsDead(t *testing.T) {
	r := newTestDiscovery(t, nil)
	r.set("discovery/cams", discoveryRequest("onvif", "1", ""))
	dead := r.newFake("dead.sock").register(wire.Registration{Name: "onvif"})
	r.awaitReport("cams", `"state":"Failing"`)
	r.newFake("onvif.sock", "a").start().register(wire.Registration{Name: "onvif"})
	r.awaitFound("cams", "a")
	r.await("both are reported", func() bool {
		var got resource.HandlerReport
		_ = json.Unmarshal([]byte(r.below("discovery/cams/")["handler"]), &got)
		return got.State == resource.HandlerAccepted && len(got.Endpoints) == 2 && got.Endpoints[0].Endpoint == dead.path &&
			got.Endpoints[0].State == resource.HandlerFailing && strings.Contains(got.Endpoints[0].Message, "no such file") && got.Endpoints[1].State == resource.HandlerAccepted
	})
}

func TestBadDetailsAndAChangedConfiguration(t *testing.T) {
	r := newTestDiscovery(t, nil)
	f := r.newFake("onvif.sock", "a")
	f.discover = func(ctx context.Context, q wire.Request, send func(wire.Devices, string) error) error {
		if strings.Contains(q.Details, "bad") {
			return status.Error(codes.InvalidArgument, "discoveryDetails.scopes: must be a list")
		}
		return f.say(ctx, q, send)
	}
	f.start().register(wire.Registration{Name: "onvif"})
	r.set("discovery/cams", discoveryRequest("onvif", "1", "bad"))
	r.awaitReport("cams", `{"version":"1","state":"Refused","message":"discoveryDetails.scopes: must be a list"`)
	f.nextAsked()
	r.set("discovery/cams", discoveryRequest("onvif", "2", "good"))
	require.Equal(t, "good", f.nextAsked().Details)
	r.awaitFound("cams", "a")
	r.awaitReport("cams", `{"version":"2","state":"Accepted"`)
	// It is refused again: what was found stays for a while, and it is asked no more until something changes.
	r.set("discovery/cams", discoveryRequest("onvif", "3", "bad"))
	r.awaitReport("cams", `{"version":"3","state":"Refused"`)
	r.awaitFound("cams", "a")
	f.nextAsked()
	require.NoError(t, r.register(wire.Registration{Name: "onvif", Endpoint: f.path}))
	require.Equal(t, "bad", f.nextAsked().Details)
}

func TestADeletedConfigurationEndsTheStream(t *testing.T) {
	r := newTestDiscovery(t, nil)
	f := r.newFake("onvif.sock", "a")
	ended := make(chan error, 1)
	f.discover = func(ctx context.Context, q wire.Request, send func(wire.Devices, string) error) error {
		err := f.say(ctx, q, send)
		ended <- err
		return err
	}
	f.start().register(wire.Registration{Name: "onvif"})
	r.set("discovery/cams", discoveryRequest("onvif", "1", ""))
	r.awaitFound("cams", "a")
	r.set("discovery/cams", nil)
	select {
	case <-ended:
	case <-time.After(60 * time.Second):
		require.FailNow(t, "the handler still looks for devices")
	}
}

func TestValuesOfSecrets(t *testing.T) {
	r := newTestDiscovery(t, nil)
	f := r.newFake("onvif.sock", "a").start().register(wire.Registration{Name: "onvif"})
	q := discoveryRequest("onvif", "1", "")
	q.Properties, q.Secrets = map[string]string{"user": "me"}, "7"
	r.set("discovery/cams", q)
	r.set("secrets/discovery/cams", resource.SecretValues{Version: "6", Data: map[string][]byte{"password": []byte("old")}})
	r.set("secrets/discovery/cams", resource.SecretValues{Version: "7", Data: map[string][]byte{"password": []byte("new")}})
	require.Equal(t, map[string][]byte{"user": []byte("me"), "password": []byte("new")}, f.nextAsked().Properties)
	r.awaitFound("cams", "a")
	require.Empty(t, f.asked, "it was asked before the values were there")
}

func TestTheNamesOfTheProposal(t *testing.T) {
	r := newTestDiscovery(t, nil)
	f := r.newFake("onvif.sock", "a").start().register(wire.Registration{Contract: wire.ContractProposal, Name: "onvif", Shared: true})
	r.set("discovery/cams", discoveryRequest("onvif", "1", "find: all"))
	require.Equal(t, map[string]string{resource.OnlyDetail: "find: all"}, f.nextAsked().DetailsMap)
	r.awaitFound("cams", "a")
	require.Contains(t, r.below("discovery/cams/instances/")[resource.DiscoveredName("a")], `"shared":true`)
}

func TestNothingIsPublishedForAnUnchangedList(t *testing.T) {
	r := newTestDiscovery(t, func(o *Options) { o.Config.Limits.Devices = 10_001 })
	var ids []string
	for i := range 10_000 {
		ids = append(ids, fmt.Sprint("device-", i))
	}
	f := r.newFake("onvif.sock", ids...).start().register(wire.Registration{Name: "onvif"})
	r.set("discovery/cams", discoveryRequest("onvif", "1", ""))
	r.awaitFound("cams", ids...)
	r.awaitReport("cams", "Accepted")
	before := r.published()
	f.find(ids...) // the same list again
	slices.Reverse(ids)
	f.find(ids...) // and in another order
	f.find(append(ids, "one-more")...)
	r.awaitFound("cams", append(ids, "one-more")...)
	require.Equal(t, before+1, r.published())
	// One more than there may be.
	f.find(append([]string{"first", "second"}, ids...)...)
	r.awaitReport("cams", "more than 10001 devices (limits.devices): the first ones count, and 1 are left out")
}

func (c *testCore) published() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.publishes
}

func TestABadDeviceIsLeftOutAndNamed(t *testing.T) {
	r := newTestDiscovery(t, nil)
	f := r.newFake("onvif.sock")
	f.devices = wire.Devices{
		{ID: "good", Properties: map[string]string{"A": "1"}},
		{ID: "twice"},
		{ID: "twice", Properties: map[string]string{"B": "2"}},
		{ID: "bad", Properties: map[string]string{"A=B": ""}},
		{ID: "path", Mounts: []wire.Mount{{HostPath: "/etc/../x", ContainerPath: "/x"}}},
		{},
		{ID: "large", Properties: map[string]string{"A": strings.Repeat("x", 40<<10)}},
	}
	f.start().register(wire.Registration{Name: "onvif"})
	r.set("discovery/cams", discoveryRequest("onvif", "1", ""))
	r.awaitFound("cams", "good", "twice")
	r.awaitReport("cams", `"state":"Failing"`)
	for _, text := range []string{`two devices have the id \"twice\" (B is \"\" and \"2\"): the first one counts`, "A=B", "mounts[0].hostPath", "and 2 more devices are left out"} {
		r.awaitReport("cams", text)
	}
	f.find("good", "twice")
	r.awaitReport("cams", `"state":"Accepted"`)
}

func TestAHandlerOfItsOwnTellsWhatItLeavesOut(t *testing.T) {
	r := newTestDiscovery(t, nil)
	r.set("discovery/cams", discoveryRequest("onvif", "1", ""))
	f := r.newFake("onvif.sock", "a").start().register(wire.Registration{Name: "onvif"})
	r.awaitFound("cams", "a")
	f.mu.Lock()
	f.told = "camera b has a template\x07that isn't understood" + strings.Repeat("!", 5000)
	f.mu.Unlock()
	f.find("a")
	r.awaitReport("cams", `camera b has a template that isn't understood!`)
	report := r.below("discovery/cams/")["handler"]
	require.Contains(t, report, `"state":"Accepted"`)
	require.NotContains(t, report, strings.Repeat("!", 1025))
	f.mu.Lock()
	f.told = ""
	f.mu.Unlock()
	f.find("a")
	r.await("what it told is taken back", func() bool { return !strings.Contains(r.below("discovery/cams/")["handler"], "camera b") })
}

func TestAHandlerThatFloods(t *testing.T) {
	r := newTestDiscovery(t, nil)
	f := r.newFake("flood.sock")
	f.discover = func(ctx context.Context, _ wire.Request, send func(wire.Devices, string) error) error {
		for i := 0; ; i++ {
			if err := send(wire.Devices{{ID: "a", Properties: map[string]string{"N": fmt.Sprint(i)}}}, ""); err != nil {
				return err
			}
		}
	}
	f.start().register(wire.Registration{Name: "flood"})
	r.newFake("calm.sock", "b").start().register(wire.Registration{Name: "calm"})
	r.set("discovery/flood", discoveryRequest("flood", "1", ""))
	r.awaitReport("flood", "it sends lists faster than they are read")
	before, begun := r.published(), time.Now()
	r.set("discovery/calm", discoveryRequest("calm", "1", ""))
	r.awaitFound("calm", "b")
	require.Less(t, float64(r.published()-before), 10+200*time.Since(begun).Seconds())
}

func TestAHandlerThatStalls(t *testing.T) {
	r := newTestDiscovery(t, func(o *Options) { o.Timing.Probe, o.Timing.ProbeTimeout = 50*time.Millisecond, 100*time.Millisecond })
	f := r.newFake("stall.sock", "a").start().register(wire.Registration{Name: "stall"})
	r.set("discovery/stall", discoveryRequest("stall", "1", ""))
	r.awaitFound("stall", "a")
	// Its socket takes connections, and nobody answers: as when the process is stopped.
	f.server.Stop()
	l, err := rawgrpc.ListenUnix(f.path)
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	r.awaitReport("stall", `"state":"Failing"`)
	r.awaitFound("stall", "a")
}

func TestAHandlerThatSaysNothingFindsNothing(t *testing.T) {
	r := newTestDiscovery(t, func(o *Options) {
		o.Timing.Silence = 50 * time.Millisecond
		o.Config.Handlers.Grace = 500 * time.Millisecond
	})
	f := r.newFake("quiet.sock", "a").start().register(wire.Registration{Name: "quiet"})
	r.set("discovery/quiet", discoveryRequest("quiet", "1", ""))
	r.awaitFound("quiet", "a")
	r.stop()
	f.discover = func(ctx context.Context, _ wire.Request, _ func(wire.Devices, string) error) error {
		<-ctx.Done()
		return nil
	}
	r.start()
	r.awaitReport("quiet", "has found nothing yet")
	r.awaitFound("quiet")
}

func TestTheCoreRefuses(t *testing.T) {
	r := newTestDiscovery(t, nil)
	r.mu.Lock()
	r.refuse = "limits.node.keys: the node has 10 keys"
	r.mu.Unlock()
	r.newFake("onvif.sock", "a").start().register(wire.Registration{Name: "onvif"})
	r.set("discovery/cams", discoveryRequest("onvif", "1", ""))
	r.awaitReport("cams", "the core refuses instances: limits.node.keys")
	r.mu.Lock()
	r.refuse = ""
	r.mu.Unlock()
	r.awaitFound("cams", "a")
	r.awaitReport("cams", `"state":"Accepted"`)
}

func TestWhoMayRegister(t *testing.T) {
	r := newTestDiscovery(t, nil)
	for _, c := range []struct {
		as    wire.Registration
		wrong string
	}{
		{wire.Registration{Name: "", Endpoint: "/x.sock"}, "the handler's name"},
		{wire.Registration{Name: "x\x00", Endpoint: "/x.sock"}, "the handler's name"},
		{wire.Registration{Name: "x", Endpoint: ""}, "must be a socket in"},
		{wire.Registration{Name: "x", Endpoint: "/x/.."}, "must be a socket in"},
		{wire.Registration{Name: "x", Endpoint: handler.RegistrationSocket}, "must be a socket in"},
		{wire.Registration{Name: "x", Endpoint: "http://192.0.2.1:80", Network: true}, "with mutual TLS only (tcp.tls)"},
		{wire.Registration{Name: "x", Endpoint: "localhost", Network: true}, "must be host:port"},
	} {
		err := r.register(c.as)
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.ErrorContains(t, err, c.wrong)
	}
	for i := range maxEndpoints {
		require.NoError(t, r.register(wire.Registration{Name: "x", Endpoint: fmt.Sprintf("/var/lib/akri/%d.sock", i)}))
	}
	require.ErrorContains(t, r.register(wire.Registration{Name: "x", Endpoint: "/more.sock"}), "there are 64 handlers already")
}

// echoHandler is an embedded handler.
type echoHandler struct{}

func (echoHandler) Discover(ctx context.Context, details string, _ map[string][]byte, found func([]handler.Device)) error {
	switch details {
	case "panic":
		panic("oh")
	case "bad":
		return handler.InvalidArgument("discoveryDetails: %s", details)
	}
	found([]handler.Device{{ID: details}})
	<-ctx.Done()
	return nil
}

func TestEmbeddedHandlers(t *testing.T) {
	r := newTestDiscovery(t, func(o *Options) {
		o.Embedded = []handler.Program{
			{Name: "echo", New: func(handler.Env) handler.Handler { return echoHandler{} }},
			{Name: "other", New: func(handler.Env) handler.Handler { return echoHandler{} }},
		}
		o.Config.Handlers.Embedded = []string{"ec*"}
	})
	r.set("discovery/good", discoveryRequest("echo", "1", "a"))
	r.set("discovery/panics", discoveryRequest("echo", "1", "panic"))
	r.set("discovery/refused", discoveryRequest("echo", "1", "bad"))
	r.set("discovery/none", discoveryRequest("other", "1", "a"))
	r.awaitFound("good", "a")
	r.awaitReport("good", `[{"endpoint":"embedded/echo","state":"Accepted"}]`)
	r.awaitReport("panics", "the handler panicked: oh")
	r.awaitReport("refused", `"state":"Refused","message":"discoveryDetails: bad"`)
	require.Empty(t, r.below("discovery/none/"))
}

// birthHandler is an embedded handler of devices that announce themselves once: it finds what it knows and what is born, if it begins as the details
// say.
type birthHandler struct{ born chan string }

func (b birthHandler) Discover(ctx context.Context, details string, _ map[string][]byte, found func([]handler.Device)) error {
	return errors.New("it is to be told what it has found before")
}

func (b birthHandler) Resume(ctx context.Context, details string, _ map[string][]byte, known []handler.Device, found func([]handler.Device)) error {
	list := func() {
		found(slices.DeleteFunc(slices.Clone(known), func(d handler.Device) bool { return !strings.HasPrefix(d.ID, details) }))
	}
	list()
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-b.born:
			known = append(known, handler.Device{ID: id, Properties: map[string]string{"ID": id}})
			list()
		}
	}
}

// What announces itself once isn't lost by an edit of its Configuration, nor by a restart.
func TestDevicesThatAnnounceThemselvesOnceStay(t *testing.T) {
	b := birthHandler{born: make(chan string)}
	r := newTestDiscovery(t, func(o *Options) {
		o.Embedded = []handler.Program{{Name: "births", New: func(handler.Env) handler.Handler { return b }}}
		o.Config.Handlers.Embedded = []string{"births"}
	})
	r.set("discovery/plant", discoveryRequest("births", "1", ""))
	b.born <- "a1"
	b.born <- "b1"
	r.awaitFound("plant", "a1", "b1")
	first := r.below("discovery/plant/instances/")
	r.set("discovery/plant", discoveryRequest("births", "2", "a"))
	r.awaitFound("plant", "a1")
	b.born <- "a2"
	r.awaitFound("plant", "a1", "a2")
	for range 2 {
		r.stop()
		r.start()
		r.set("discovery/plant", discoveryRequest("births", "3", "a"))
		b.born <- "a3"
		r.awaitFound("plant", "a1", "a2", "a3")
	}
	name := resource.DiscoveredName("a1")
	require.Equal(t, first[name], r.below("discovery/plant/instances/")[name], "with its properties")
}

func TestDamagedRegistrations(t *testing.T) {
	r := newTestDiscovery(t, nil)
	r.stop()
	require.NoError(t, os.WriteFile(filepath.Join(r.o.Config.Data.Dir, registrationsName), []byte("{"), 0o600))
	r.start()
	require.NoError(t, r.register(wire.Registration{Name: "x", Endpoint: "x.sock"}))
}
