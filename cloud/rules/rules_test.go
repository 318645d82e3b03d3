// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

const testTimeout = 10 * time.Second

// ruleRig is an Engine with a store and a broker, and one node that the test plays.
type ruleRig struct {
	*Engine
	t       *testing.T
	store   store.Store
	objects *objects.Controller
	broker  *broker.Broker

	online atomic.Bool
	clock  atomic.Int64 // that has passed
	mu     sync.Mutex
	node   func(r resource.RuleRequest, body []byte) *resource.RuleAnswer // nil: no answer
	got    []string                                                       // the bodies that the node got
}

type emptyTree struct{}

func (emptyTree) Publish(_ broker.Message, done func(error)) { done(nil) }
func (emptyTree) Retained(string) func(int) []broker.Message {
	return func(int) []broker.Message { return nil }
}

func newRuleRig(t *testing.T, change func(*Options)) *ruleRig {
	t.Helper()
	st, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	b, err := broker.New(broker.Options{LinkQueue: &broker.LinkQueueOptions{Bytes: 1 << 20, Age: time.Hour}, Tree: emptyTree{}, Log: zerolog.Nop()})
	require.NoError(t, err)
	registry := objects.New(objects.Options{Reader: st, Writer: st, Log: zerolog.Nop()})
	g := &ruleRig{t: t, store: st, broker: b, objects: registry.Controller("test")}
	g.node = func(resource.RuleRequest, []byte) *resource.RuleAnswer { return &resource.RuleAnswer{} }
	o := Options{
		Objects: registry.Controller("rules"), Reader: st, Writer: objects.Records(st), Tree: emptyTree{}, Publish: g.publish,
		Subscribers: func(topic string) (list []broker.Subscriber) {
			if g.online.Load() && topic == requestTopic("n1") {
				list = append(list, broker.Subscriber{Identity: &broker.Identity{ClientID: "node/n1", Node: "n1", Roles: []topics.Role{topics.RoleNode}}, Filter: topic})
			}
			return list
		},
		Keep: b.LinkQueue().Keep, Take: b.LinkQueue().Open, Log: zerolog.Nop(), Age: time.Hour,
		Now: func() time.Time { return time.Now().Add(time.Duration(g.clock.Load())) },
	}
	if change != nil {
		change(&o)
	}
	g.Engine = New(o)
	g.retry = backoff.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond}
	for name, properties := range map[string]map[string]string{"rest": nil, "eventbus": nil, "servicebus": {"service_port": "6666"}} {
		g.create(&resource.RuleEndpoint{Metadata: resource.Meta{Name: name, Namespace: "default"}, Spec: resource.RuleEndpointSpec{RuleEndpointType: name, Properties: properties}})
	}
	_, err = objects.Create(t.Context(), g.objects, &resource.Node{Metadata: resource.Meta{Name: "n1"}})
	require.NoError(t, err)
	return g
}

func (g *ruleRig) create(v any) {
	g.t.Helper()
	var err error
	switch v := v.(type) {
	case *resource.RuleEndpoint:
		_, err = objects.Create(g.t.Context(), g.objects, v)
	case *resource.Rule:
		_, err = objects.Create(g.t.Context(), g.objects, v)
	}
	require.NoError(g.t, err)
}

// rule makes a Rule act: its source and target are the endpoints of these types.
func (g *ruleRig) rule(name, from, source, to, target string) store.Key {
	g.t.Helper()
	r := &resource.Rule{Metadata: resource.Meta{Name: name, Namespace: "default"}, Spec: resource.RuleSpec{Source: from, Target: to}}
	key := map[string]string{"rest": "path", "eventbus": "topic"}[from]
	r.Spec.SourceResource = map[string]string{key: source, "node_name": "n1"}
	r.Spec.TargetResource = map[string]string{map[string]string{"rest": "resource", "eventbus": "topic", "servicebus": "path"}[to]: target}
	g.create(r)
	_, err := g.reconcile(g.t.Context(), ruleKey(r))
	require.NoError(g.t, err)
	return ruleKey(r)
}

func (g *ruleRig) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = g.Run(ctx) }()
	stop = func() { cancel(); <-ended }
	g.t.Cleanup(stop)
	return stop
}

// publish is the broker's: the node answers.
func (g *ruleRig) publish(m broker.Message) {
	var r resource.RuleRequest
	_ = json.Unmarshal([]byte(m.Props.User[0].Value), &r)
	g.mu.Lock()
	answer := g.node(r, m.Payload)
	if answer != nil && answer.Code == "" {
		g.got = append(g.got, string(m.Payload))
	}
	g.mu.Unlock()
	if answer == nil {
		return
	}
	text, _ := json.Marshal(answer)
	go g.Publish(broker.Message{
		Topic: m.Props.ResponseTopic, Payload: []byte("the answer"), Props: broker.Properties{User: []broker.UserProperty{{Key: resource.PropAnswer, Value: string(text)}}},
		Publisher: &broker.Identity{Node: "n1", Roles: []topics.Role{topics.RoleNode}},
	}, func(error) {})
}

func (g *ruleRig) arrives() {
	g.online.Store(true)
	g.Subscribed(&broker.Identity{ClientID: "node/n1", Node: "n1", Roles: []topics.Role{topics.RoleNode}}, requestTopic("n1"))
}

func (g *ruleRig) nodeGot() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.got)
}

// request sends a request to the hub: the status of the answer, and what it says.
func (g *ruleRig) request(method, path, body string) (code int, said string, header http.Header) {
	g.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	w := httptest.NewRecorder()
	_, serve := g.Request(r)
	require.NotNil(g.t, serve, path)
	err := serve(w, r)
	var coded *httpError
	switch {
	case err == nil:
		return w.Code, w.Body.String(), w.Header()
	case errors.As(err, &coded):
		return coded.code, err.Error(), w.Header()
	case errors.Is(err, resource.Quota):
		return http.StatusTooManyRequests, err.Error(), w.Header()
	}
	require.NoError(g.t, err)
	return 0, "", nil
}

// status writes the counts, and reads the Rule's status.
func (g *ruleRig) status(key store.Key) resource.RuleStatus {
	g.t.Helper()
	_, err := g.writeCounts(g.t.Context(), key)
	require.NoError(g.t, err)
	r, err := objects.Get[resource.Rule](g.t.Context(), g.objects, key)
	require.NoError(g.t, err)
	return r.Status
}

func (g *ruleRig) eventually(holds func() bool, what string) {
	g.t.Helper()
	require.Eventually(g.t, holds, testTimeout, time.Millisecond, what)
}

func TestOfSeveralRulesTheOneWithTheLongestAndMostNamedPathTakesARequest(t *testing.T) {
	g := newRuleRig(t, nil)
	for i, path := range []string{"/test", "/test/{id}", "/test/{id}/x", "/test/7", "other/{a}", "{any}/b"} {
		g.rule(fmt.Sprint("r", i), "rest", path, "eventbus", "t")
	}
	for path, want := range map[string]string{
		"/n1/default/test": "r0 ", "/n1/default/test/": "r0 ", "/n1/default/test/5": "r1 ", "/n1/default/test/7": "r3 ", "/n1/default/test/7/x": "r2 ",
		"/n1/default/test/7/y/z": "r3 y/z", "/n1/default/testing": "", "/n1/default/other/b": "r4 ", "/n1/default/third/b": "r5 ", "/n1/other/test": "",
		"/n1/default": "", "/": "", "/N1/default/test": "", "/n1/default/test/a%2Fb": "", "/n1/default/test/%2e%2e": "", "/n1/default/test/5/a%20b": "r1 a%20b",
	} {
		u, err := url.Parse(path)
		require.NoError(t, err)
		rule, node, rest := g.ruleOf(u)
		got := ""
		if rule != nil {
			got = rule.key.Name + " " + strings.Join(rest, "/")
			require.Equal(t, "n1", node)
		}
		require.Equal(t, want, got, path)
	}
}

func TestOfTwoRulesWithOnePathTheOlderActsUntilItIsDeleted(t *testing.T) {
	g := newRuleRig(t, nil)
	first := g.rule("z", "rest", "/test", "eventbus", "first")
	second := &resource.Rule{Metadata: resource.Meta{Name: "a", Namespace: "default"}, Spec: resource.RuleSpec{
		Source: "rest", SourceResource: map[string]string{"path": "test/"}, Target: "eventbus", TargetResource: map[string]string{"topic": "second"},
	}}
	g.active[first].created = g.active[first].created.Add(-time.Hour) // times of creation are whole seconds
	g.create(second)
	_, err := g.reconcile(t.Context(), ruleKey(second))
	require.NoError(t, err)
	require.Equal(t, resource.ReasonSourceTaken, g.status(ruleKey(second)).Conditions[0].Reason)
	u := &url.URL{Path: "/n1/default/test"}
	rule, _, _ := g.ruleOf(u)
	require.Equal(t, "z", rule.key.Name)
	require.Contains(t, g.neighbours(first), ruleKey(second), "which is looked at when the first changes")
	require.NoError(t, g.objects.Delete(t.Context(), first))
	for _, key := range []store.Key{first, ruleKey(second)} {
		_, err = g.reconcile(t.Context(), key)
		require.NoError(t, err)
	}
	rule, _, _ = g.ruleOf(u)
	require.Equal(t, "a", rule.key.Name)
	require.Equal(t, resource.ReasonRuleActs, g.status(ruleKey(second)).Conditions[0].Reason)
}

func TestMessagesWaitForANodeAndGoInOrderAlsoFromAHubThatStarted(t *testing.T) {
	g := newRuleRig(t, nil)
	key := g.rule("r", "rest", "/test", "eventbus", "t")
	stop := g.start()
	for i := range 5 {
		code, said, _ := g.request("POST", "/n1/default/test", fmt.Sprint(i))
		require.Equal(t, 202, code, said)
	}
	stop()
	again := New(g.o) // a hub that starts
	again.retry = g.retry
	g.Engine = again
	require.NoError(t, g.Load(t.Context()))
	g.start()
	code, _, _ := g.request("PUT", "/n1/default/test", "5")
	require.Equal(t, 202, code)
	refusals := 2
	g.node = func(r resource.RuleRequest, _ []byte) *resource.RuleAnswer {
		require.Equal(t, "t", r.Topic)
		if refusals--; refusals >= 0 {
			return &resource.RuleAnswer{Code: resource.Unavailable, Error: "the disk is full"}
		}
		return &resource.RuleAnswer{}
	}
	g.arrives()
	code, said, _ := g.request("POST", "/n1/default/test", "6")
	require.Equal(t, 200, code, said)
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6"}, g.nodeGot())
	g.eventually(func() bool { return g.status(key).SuccessMessages == 7 }, "counted")
	require.Contains(t, strings.Join(g.status(key).Errors, ""), "the disk is full")
	require.Zero(t, g.status(key).FailMessages)
	g.eventually(func() bool {
		g.messages.mu.Lock()
		defer g.messages.mu.Unlock()
		return len(g.messages.nodes) == 0
	}, "nothing is kept of a node for which nothing waits")
	code, _, _ = g.request("POST", "/n1/default/test", "7")
	require.Equal(t, 200, code)
}

func TestAMessageThatANodeRefusesOrThatIsTooOldHoldsUpNoOther(t *testing.T) {
	g := newRuleRig(t, nil)
	key := g.rule("r", "rest", "/test", "eventbus", "t")
	code, _, _ := g.request("POST", "/n1/default/test", "old")
	require.Equal(t, 202, code)
	g.clock.Store(int64(2 * time.Hour))
	g.start()
	g.node = func(_ resource.RuleRequest, body []byte) *resource.RuleAnswer {
		if string(body) == "bad" {
			return &resource.RuleAnswer{Code: resource.Forbidden, Error: "not here"}
		}
		return &resource.RuleAnswer{}
	}
	g.arrives()
	code, said, _ := g.request("POST", "/n1/default/test", "bad")
	require.Equal(t, 502, code)
	require.Contains(t, said, "node n1 refused the message: not here")
	code, _, _ = g.request("POST", "/n1/default/test", "good")
	require.Equal(t, 200, code)
	require.Equal(t, []string{"good"}, g.nodeGot())
	g.eventually(func() bool { return g.status(key).FailMessages == 2 }, "both are counted")
	require.Contains(t, strings.Join(g.status(key).Errors, ""), "longer than a message waits (rules.age, 1h0m0s)")
}

func TestSoManyMessagesWaitForANodeAndNoMoreAreTaken(t *testing.T) {
	g := newRuleRig(t, nil)
	g.rule("r", "rest", "/test", "eventbus", "t")
	big := strings.Repeat("x", resource.MaxRuleBody)
	for n := 0; ; n++ {
		code, said, _ := g.request("POST", "/n1/default/test", big)
		if code == 429 {
			require.Greater(t, n, 10)
			require.Contains(t, said, "wait for node n1")
			break
		}
		require.Equal(t, 202, code, said)
	}
	code, said, _ := g.request("POST", "/n1/default/test", big+"x")
	require.Equal(t, 413, code, said)
	code, said, _ = g.request("POST", "/n1/default/test/a+b", "")
	require.Equal(t, 400, code, said)
	code, said, _ = g.request("POST", "/n9/default/test", "")
	require.Equal(t, 404, code, said)
	code, _, header := g.request("GET", "/n1/default/test", "")
	require.Equal(t, 405, code)
	require.Equal(t, "POST, PUT", header.Get("Allow"))
}

func TestARequestToAServiceSaysWhatBecameOfIt(t *testing.T) {
	g := newRuleRig(t, func(o *Options) { o.Timeout = 50 * time.Millisecond })
	key := g.rule("r", "rest", "/ask", "servicebus", "/answer")
	code, said, header := g.request("GET", "/n1/default/ask", "")
	require.Equal(t, 503, code)
	require.Contains(t, said, "send it again when the node is online")
	require.Equal(t, "10", header.Get("Retry-After"))
	g.arrives()
	g.node = func(r resource.RuleRequest, _ []byte) *resource.RuleAnswer {
		require.Equal(t, resource.RuleRequest{Rule: "default/r", Port: 6666, Method: "DELETE", Path: "/answer/a%20b?q=%2F"}, r)
		return &resource.RuleAnswer{Status: 418, Header: map[string][]string{"X-A": {"b"}, "Set-Cookie": {"c"}, "Content-Security-Policy": {"none"}}}
	}
	code, said, header = g.request("DELETE", "/n1/default/ask/a%20b?q=%2F", "")
	require.Equal(t, 418, code)
	require.Equal(t, "the answer", said)
	require.Equal(t, "b", header.Get("X-A"))
	require.Empty(t, header.Get("Set-Cookie"))
	require.Equal(t, []string{"sandbox"}, header["Content-Security-Policy"], "the service can't make its answer a page of the hub")
	for kind, want := range map[resource.ErrorKind]int{resource.Forbidden: 403, resource.Quota: 503, resource.Gone: 504, resource.Internal: 502, resource.TooLarge: 502} {
		g.node = func(resource.RuleRequest, []byte) *resource.RuleAnswer {
			return &resource.RuleAnswer{Code: kind, Error: "why"}
		}
		code, said, _ = g.request("GET", "/n1/default/ask", "")
		require.Equal(t, want, code, kind)
		require.Contains(t, said, "why")
	}
	g.node = func(resource.RuleRequest, []byte) *resource.RuleAnswer { return nil }
	code, said, _ = g.request("GET", "/n1/default/ask", "")
	require.Equal(t, 504, code)
	require.Contains(t, said, "rules.timeout")
	g.o.Timeout = testTimeout
	g.node = func(resource.RuleRequest, []byte) *resource.RuleAnswer {
		go g.Disconnected(&broker.Identity{ClientID: "node/n1", Node: "n1", Roles: []topics.Role{topics.RoleNode}}, nil)
		return nil
	}
	code, said, _ = g.request("GET", "/n1/default/ask", "")
	require.Equal(t, 502, code)
	require.Contains(t, said, "may or may not have been done")
	s := g.status(key)
	require.EqualValues(t, 1, s.SuccessMessages)
	require.EqualValues(t, 8, s.FailMessages)
}

// What is longer than the link can carry is refused before it is sent, or stored.
func TestARequestThatIsLongerThanTheLinkCarriesIsRefused(t *testing.T) {
	g := newRuleRig(t, nil)
	g.arrives()
	g.start()
	g.rule("r", "rest", "/ask", "servicebus", "/answer")
	g.rule("p", "rest", "/publish", "eventbus", "test")
	g.node = func(r resource.RuleRequest, _ []byte) *resource.RuleAnswer { return &resource.RuleAnswer{Status: 200} }
	long := strings.Repeat("x", resource.MaxRuleText)
	code, said, _ := g.request("GET", "/n1/default/ask?q="+long, "")
	require.Equal(t, 431, code)
	require.Contains(t, said, "at most 40960 bytes")
	code, _, _ = g.request("POST", "/n1/default/publish/"+long, "x")
	require.Equal(t, 414, code)
	require.Empty(t, g.nodeGot())
	code, _, _ = g.request("GET", "/n1/default/ask?q="+long[:len(long)-1000], "")
	require.Equal(t, 200, code)
}

func TestANodeIsAskedSoManyThingsAtOneTime(t *testing.T) {
	g := newRuleRig(t, func(o *Options) { o.Timeout = testTimeout })
	g.rule("r", "rest", "/ask", "servicebus", "/answer")
	g.arrives()
	var asked atomic.Int32
	g.node = func(resource.RuleRequest, []byte) *resource.RuleAnswer { asked.Add(1); return nil }
	var waiting sync.WaitGroup
	for range maxAskedNode {
		waiting.Go(func() { g.request("GET", "/n1/default/ask", "") })
	}
	g.eventually(func() bool { return asked.Load() == maxAskedNode }, "all are asked")
	code, said, _ := g.request("GET", "/n1/default/ask", "")
	require.Equal(t, 503, code)
	require.Contains(t, said, "too many requests")
	g.asked.left("node/n1")
	waiting.Wait()
}

func TestAnAnswerOfAnotherNodeIsRefused(t *testing.T) {
	g := newRuleRig(t, nil)
	require.True(t, g.asked.add("abc", &pendingAnswer{node: "n1", done: make(chan nodeAnswer, 1)}, false))
	for _, topic := range []string{"v1/nodes/n2/rules/answers/abc", "v1/nodes/n1/rules/answers/abd"} {
		g.Publish(broker.Message{Topic: topic}, func(err error) { require.ErrorIs(t, err, resource.NotFound, topic) })
	}
	g.Publish(broker.Message{Topic: "v1/nodes/n1/rules/answers/abc"}, func(err error) { require.NoError(t, err) })
}

// aServer answers with codes, and then with 200, and keeps what it took.
type aServer struct {
	*httptest.Server
	mu    sync.Mutex
	codes []int
	got   []string
	last  http.Header
}

func newServer(t *testing.T, codes ...int) *aServer {
	s := &aServer{codes: codes}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last = r.Header
		if len(s.codes) > 0 {
			code := s.codes[0]
			s.codes = s.codes[1:]
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(code)
			return
		}
		s.got = append(s.got, string(body))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *aServer) taken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.got, " ")
}

func (g *ruleRig) comesUp(topic, payload string) {
	g.t.Helper()
	done := make(chan error, 1)
	g.broker.Pass(broker.Message{Topic: "v1/nodes/n1/bridge/" + topic, Payload: []byte(payload), QoS: 1}, func(err error) { done <- err })
	require.NoError(g.t, <-done)
}

func TestAServerGetsANodesMessagesInOrderAndNoOtherWaitsForIt(t *testing.T) {
	g := newRuleRig(t, nil)
	slow, quick := newServer(t, 503, 500, 429), newServer(t)
	one := g.rule("slow", "eventbus", "t", "rest", slow.URL)
	g.rule("quick", "eventbus", "t", "rest", quick.URL+"/path")
	gone := g.rule("gone", "eventbus", "t", "rest", "http://127.0.0.1:1/")
	g.start()
	for i := range 4 {
		g.comesUp("t", fmt.Sprint(i))
	}
	g.comesUp("other", "x")     // no Rule names it
	g.comesUp("default/t", "4") // as KubeEdge's programs publish
	g.eventually(func() bool { return quick.taken() == "0 1 2 3 4" && slow.taken() == "0 1 2 3 4" }, "both have all")
	require.Equal(t, "default%2Ft", quick.last.Get("Edgebus-Topic"))
	require.Equal(t, "default/quick", quick.last.Get("Edgebus-Rule"))
	require.Equal(t, "n1", quick.last.Get("NodeName"))
	g.eventually(func() bool { return g.status(one).SuccessMessages == 5 }, "counted")
	require.Zero(t, g.status(one).FailMessages)
	require.Contains(t, strings.Join(g.status(one).Errors, ""), "503")
	require.Positive(t, g.broker.LinkQueue().Stats().Messages, "they wait for the third")
	require.NoError(t, g.objects.Delete(t.Context(), gone))
	_, err := g.reconcile(t.Context(), gone)
	require.NoError(t, err)
	g.eventually(func() bool { return g.broker.LinkQueue().Stats().Messages == 0 }, "a Rule that is gone lets go of them")
}

// A server that is away holds up no other, however many messages wait for it, and however large they are: it has a share of what may wait.
func TestMessagesForAServerThatIsAwayLeaveRoomForOthers(t *testing.T) {
	for name, c := range map[string]struct {
		window, size, share int
	}{
		"many":  {window: 2 * leastShare, size: 1, share: leastShare},
		"large": {window: forwardWindow, size: 10_000, share: 50},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRuleRig(t, func(o *Options) { o.Bytes = 1_000_000 })
			g.window = c.window
			there := newServer(t)
			away := g.rule("away", "eventbus", "a", "rest", "http://127.0.0.1:1/")
			g.rule("there", "eventbus", "t", "rest", there.URL)
			g.start()
			for range c.share + 25 {
				g.comesUp("a", strings.Repeat("x", c.size))
			}
			g.eventually(func() bool { return g.broker.LinkQueue().Stats().Messages == c.share }, "a share of the messages waits")
			g.comesUp("t", "hello")
			g.eventually(func() bool { return there.taken() == "hello" }, "the other server gets its message")
			g.eventually(func() bool { return g.status(away).FailMessages >= 25 }, "what gave way is counted")
			require.Contains(t, strings.Join(g.status(away).Errors, "\n"), "the oldest gave way")
		})
	}
}

func TestWhatAServerRefusesAndWhatIsTooOldIsCountedAndLost(t *testing.T) {
	g := newRuleRig(t, nil)
	s := newServer(t, 400, 302)
	refused := g.rule("refused", "eventbus", "t", "rest", s.URL)
	away := g.rule("away", "eventbus", "old", "rest", "http://127.0.0.1:1/a-secret")
	g.start()
	for _, payload := range []string{"0", "1", "2"} {
		g.comesUp("t", payload)
	}
	g.eventually(func() bool { return s.taken() == "2" }, "what isn't refused")
	g.eventually(func() bool { return g.status(refused).FailMessages == 2 }, "counted")
	require.Contains(t, strings.Join(g.status(refused).Errors, ""), "the server refused the message")
	g.comesUp("old", "0")
	g.eventually(func() bool { return len(g.status(away).Errors) > 0 }, "said before it is given up")
	require.Zero(t, g.status(away).FailMessages)
	g.clock.Store(int64(2 * time.Hour))
	g.eventually(func() bool { return g.status(away).FailMessages == 1 }, "given up")
	require.NotContains(t, strings.Join(g.status(away).Errors, ""), "a-secret")
	require.Contains(t, strings.Join(g.status(away).Errors, ""), "given up after 1h0m0s (rules.age)")
}

// What a node is told of a Rule follows it: a record, from which its topic in the node's tree is made.
func TestANodeIsToldWhichOfItsTopicsARuleWants(t *testing.T) {
	g := newRuleRig(t, nil)
	key := g.rule("r", "eventbus", "a/b", "rest", "http://a.com")
	record := store.Key{Kind: OrderKind, Namespace: "default", Name: "r"}
	o, err := g.store.Get(t.Context(), record)
	require.NoError(t, err)
	node, at, value, err := Documents(o)
	require.NoError(t, err)
	require.Equal(t, []string{"n1", "rules/default.r", `{"topics":["a/b","default/a/b"]}`}, []string{node, at, string(value)})
	require.NoError(t, objects.Update(t.Context(), g.objects, key, func(r *resource.Rule) error {
		r.Spec.SourceResource["topic"] = "c"
		return nil
	}))
	_, err = g.reconcile(t.Context(), key)
	require.NoError(t, err)
	o, err = g.store.Get(t.Context(), record)
	require.NoError(t, err)
	require.True(t, bytes.Contains(o.Data, []byte(`"topics":["c","default/c"]`)), string(o.Data))
	require.NoError(t, g.objects.Delete(t.Context(), store.Key{Kind: resource.KindRuleEndpoint, Namespace: "default", Name: "rest"}))
	_, err = g.reconcile(t.Context(), key)
	require.NoError(t, err)
	_, err = g.store.Get(t.Context(), record)
	require.ErrorIs(t, err, resource.NotFound)
	require.Equal(t, resource.ReasonEndpointMissing, g.status(key).Conditions[0].Reason)
	require.Empty(t, g.rulesOf("v1/nodes/n1/bridge/c"))
}
