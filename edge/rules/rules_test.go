// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// service is one that listens at a port of this host.
func service(t *testing.T, answer http.HandlerFunc) (port int) {
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	port, err = strconv.Atoi(u.Port())
	require.NoError(t, err)
	return port
}

func newRules(t *testing.T, ports ...int) *Rules {
	return New(Options{Node: "n1", Ports: ports, Log: zerolog.Nop(), Publish: func(m broker.Message, done func(error)) {
		if m.Topic == "full" {
			done(resource.Errorf(resource.Unavailable, "", "the disk is full"))
			return
		}
		done(nil)
	}})
}

// doRequest has a request done, and returns its answer.
func doRequest(t *testing.T, r *Rules, request resource.RuleRequest, body string, expiry uint32) (resource.RuleAnswer, string) {
	t.Helper()
	text, err := json.Marshal(request)
	require.NoError(t, err)
	answers := make(chan broker.Message, 1)
	r.Do(t.Context(), broker.Message{Payload: []byte(body), Props: broker.Properties{
		ResponseTopic: "v1/nodes/n1/rules/answers/a", Expiry: expiry, User: []broker.UserProperty{{Key: resource.PropRequest, Value: string(text)}},
	}}, func(m broker.Message) { answers <- m })
	select {
	case m := <-answers:
		require.Equal(t, "v1/nodes/n1/rules/answers/a", m.Topic)
		var a resource.RuleAnswer
		require.NoError(t, json.Unmarshal([]byte(m.Props.User[0].Value), &a))
		return a, string(m.Payload)
	case <-time.After(10 * time.Second):
		require.Fail(t, "no answer")
		return resource.RuleAnswer{}, ""
	}
}

func TestARequestGoesToAPortThatIsListedAndToNoOther(t *testing.T) {
	other := service(t, func(http.ResponseWriter, *http.Request) { t.Error("a port that is not listed was asked") })
	port := service(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Location", "http://127.0.0.1:"+strconv.Itoa(other))
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("X-Rule", r.Header.Get("Edgebus-Rule"))
		w.WriteHeader(http.StatusFound)
		_, _ = io.WriteString(w, r.Method+" "+r.URL.String()+" "+r.Header.Get("X-A")+r.Header.Get("Cookie")+" "+string(body))
	})
	r := newRules(t, port)
	a, body := doRequest(t, r, resource.RuleRequest{Rule: "default/r", Port: port, Method: "PUT", Path: "/a%20b?q=1", Header: map[string][]string{"X-A": {"b"}, "Cookie": {"secret"}}}, "c", 10)
	require.Equal(t, http.StatusFound, a.Status, a.Error)
	require.Equal(t, "PUT /a%20b?q=1 b c", body, "no redirect is followed, and no cookie of the hub goes further")
	require.Equal(t, []string{"default/r"}, a.Header["X-Rule"])
	require.NotContains(t, a.Header, "Set-Cookie")
	for _, request := range []resource.RuleRequest{
		{Port: other, Method: "GET", Path: "/"},
		{Port: 0, Method: "GET", Path: "/"},
		{Port: port, Method: "GET", Path: "@127.0.0.1:" + strconv.Itoa(other) + "/"},
		{Port: port, Method: "G T", Path: "/"},
		{Port: port, Method: "GET", Path: ""},
	} {
		a, _ := doRequest(t, r, request, "", 10)
		require.Contains(t, []resource.ErrorKind{resource.Forbidden, resource.Invalid}, a.Code, request.Path)
		require.Zero(t, a.Status)
	}
	a, _ = doRequest(t, newRules(t), resource.RuleRequest{Port: port, Method: "GET", Path: "/"}, "", 10)
	require.Contains(t, a.Error, "list it in rules.ports of edgecore", "a node lists none until somebody does")
}

func TestAServiceThatIsSlowLargeOrNotThereHasAnAnswer(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	slow := service(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	large := service(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", resource.MaxRuleBody+1))
	})
	r := newRules(t, slow, large, 1)
	for port, want := range map[int]resource.ErrorKind{slow: resource.Gone, large: resource.TooLarge, 1: resource.Internal} {
		a, body := doRequest(t, r, resource.RuleRequest{Port: port, Method: "GET", Path: "/"}, "", 1)
		require.Equal(t, want, a.Code, a.Error)
		require.Empty(t, body)
	}
	for range maxRequests {
		r.busy <- struct{}{}
	}
	a, _ := doRequest(t, r, resource.RuleRequest{Port: large, Method: "GET", Path: "/"}, "", 10)
	require.Equal(t, resource.Quota, a.Code)
}

// A header that grows when it is written as JSON is answered, and not lost on the way.
func TestAnAnswerThatIsLongerThanTheLinkCarriesIsRefused(t *testing.T) {
	port := service(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("<", resource.MaxRuleHeader-1000))
	})
	a, _ := doRequest(t, newRules(t, port), resource.RuleRequest{Rule: "default/r", Port: port, Method: "GET", Path: "/"}, "", 0)
	require.Equal(t, resource.TooLarge, a.Code)
	require.Contains(t, a.Error, "headers")
}

func TestAMessageIsAnsweredWhenTheBrokerHasStoredIt(t *testing.T) {
	r := newRules(t)
	a, _ := doRequest(t, r, resource.RuleRequest{Topic: "a"}, "b", 0)
	require.Empty(t, a.Code)
	a, _ = doRequest(t, r, resource.RuleRequest{Topic: "full"}, "b", 0)
	require.Equal(t, resource.Unavailable, a.Code)
	require.Equal(t, "the disk is full", a.Error)
	r.Do(t.Context(), broker.Message{}, func(m broker.Message) { require.Contains(t, m.Props.User[0].Value, "Invalid") })
}

// What the hub says is wanted is taken only if it is a topic of users' own.
func TestNoTopicOfTheBusIsForwardedForARule(t *testing.T) {
	pages := [][]broker.Message{
		{{Payload: []byte(`{"topics":["a/b"]}`)}, {Payload: []byte(`{"topics":["v1/nodes/n1/spec","#"]}`)}},
		{{Payload: []byte(`{"topics":["$SYS/a","c"]}`)}, {Payload: []byte(`nonsense`)}, {}},
	}
	r := New(Options{Node: "n1", Log: zerolog.Nop(), Retained: func(filter string) func(int) []broker.Message {
		require.Equal(t, "v1/nodes/n1/rules/+", filter)
		left := pages
		return func(int) (page []broker.Message) {
			if len(left) > 0 {
				page, left = left[0], left[1:]
			}
			return page
		}
	}})
	require.Equal(t, []string{"a/b", "c"}, r.Wanted())
}
