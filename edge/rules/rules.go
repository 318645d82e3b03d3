// SPDX-License-Identifier: Apache-2.0

// Package rules does on a node what the hub's Rules ask for: it publishes messages on the node's broker, and sends requests to services of the node's host, at the ports of
// 127.0.0.1 that the node's settings list and at no others. It also says which topics of the node's broker Rules want at the hub.
//
// It never stores anything: the hub keeps a message until the node has answered that its broker has stored it.
package rules

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	maxRequests    = 16 // to services at one time
	defaultTimeout = 30 * time.Second
)

// Options are what Rules need.
type Options struct {
	Node string
	// Ports are those of services that requests may go to.
	Ports []int
	// Publish publishes a message of the hub's users on the node's broker; done is called when it is stored for all its subscribers.
	Publish func(m broker.Message, done func(error))
	// Retained has the retained messages that a filter matches.
	Retained func(filter string) func(most int) []broker.Message
	Log      zerolog.Logger
}

// Rules does what the hub's Rules ask for.
type Rules struct {
	o       Options
	client  *http.Client
	busy    chan struct{} // has a value for each request to a service that is under way
	changed chan struct{} // has a value when Rules may want other topics
}

// New makes Rules.
func New(o Options) *Rules {
	// No proxy, and no redirect to elsewhere: the port is all that was allowed.
	return &Rules{
		o: o, busy: make(chan struct{}, maxRequests), changed: make(chan struct{}, 1),
		client: &http.Client{
			Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// RequestTopic is where the hub's requests come.
func RequestTopic(node string) string {
	return topics.Address{Node: node, Kind: topics.KindRuleRequest}.String()
}

// Do does what a request of the hub asks for. answer is called once, from any goroutine, and messages are published in the order in which Do is called.
func (r *Rules) Do(ctx context.Context, m broker.Message, answer func(broker.Message)) {
	var request resource.RuleRequest
	reply := func(a resource.RuleAnswer, body []byte) {
		text, err := json.Marshal(a)
		if err == nil && len(text) > resource.MaxRuleText {
			text, err = json.Marshal(failed(resource.TooLarge, fmt.Sprintf("the service's headers have more than %d bytes, written as JSON", resource.MaxRuleText)))
			body = nil
		}
		if err != nil {
			return // never: it has texts and numbers
		}
		answer(broker.Message{Topic: m.Props.ResponseTopic, Payload: body, QoS: 1, Props: broker.Properties{User: []broker.UserProperty{{Key: resource.PropAnswer, Value: string(text)}}}})
	}
	i := slices.IndexFunc(m.Props.User, func(p broker.UserProperty) bool { return p.Key == resource.PropRequest })
	if i < 0 || json.Unmarshal([]byte(m.Props.User[i].Value), &request) != nil {
		reply(failed(resource.Invalid, "the request can't be read: is the hub newer than edgecore?"), nil)
		return
	}
	if request.Topic != "" {
		r.o.Publish(broker.Message{Topic: request.Topic, Payload: m.Payload, QoS: 1}, func(err error) {
			if err != nil {
				reply(failed(resource.KindOf(err), err.Error()), nil)
				return
			}
			reply(resource.RuleAnswer{}, nil)
		})
		return
	}
	select {
	case r.busy <- struct{}{}:
	default:
		reply(failed(resource.Quota, fmt.Sprintf("%d requests to services are under way, and no more are possible", maxRequests)), nil)
		return
	}
	timeout := defaultTimeout
	if m.Props.Expiry > 0 {
		timeout = time.Duration(m.Props.Expiry) * time.Second
	}
	go func() {
		defer func() { <-r.busy }()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		reply(r.call(ctx, request, m.Payload))
	}()
}

func failed(code resource.ErrorKind, why string) resource.RuleAnswer {
	return resource.RuleAnswer{Code: code, Error: topics.MakeReadable(why)}
}

// call sends a request to a service.
func (r *Rules) call(ctx context.Context, request resource.RuleRequest, body []byte) (resource.RuleAnswer, []byte) {
	if !slices.Contains(r.o.Ports, request.Port) {
		return failed(resource.Forbidden, fmt.Sprintf("Rules may not reach the port %d of this node: list it in rules.ports of edgecore, if they are to", request.Port)), nil
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(request.Port))
	if !strings.HasPrefix(request.Path, "/") {
		return failed(resource.Invalid, "the path does not begin with /"), nil
	}
	req, err := http.NewRequestWithContext(ctx, request.Method, "http://"+address+request.Path, bytes.NewReader(body))
	if err != nil {
		return failed(resource.Invalid, err.Error()), nil
	}
	if req.URL.Host != address {
		return failed(resource.Invalid, "the path names another host"), nil
	}
	header, _ := resource.CarriedHeader(request.Header)
	req.Header = http.Header(header)
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("Edgebus-Rule", request.Rule)
	res, err := r.client.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return failed(resource.Gone, "the service at port "+strconv.Itoa(request.Port)+" gave no answer in time: it may or may not have done it"), nil
	}
	if err != nil {
		return failed(resource.Internal, "the service at port "+strconv.Itoa(request.Port)+" can't be reached: "+err.Error()), nil
	}
	defer func() { _ = res.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(res.Body, resource.MaxRuleBody+1))
	if err != nil {
		return failed(resource.Internal, "the service's answer can't be read: "+err.Error()), nil
	}
	carried, fits := resource.CarriedHeader(res.Header)
	if len(content) > resource.MaxRuleBody || !fits {
		return failed(resource.TooLarge, fmt.Sprintf("the service's answer has more than %d bytes, or more than %d of headers", resource.MaxRuleBody, resource.MaxRuleHeader)), nil
	}
	return resource.RuleAnswer{Status: res.StatusCode, Header: carried}, content
}

// Follow is told of each message that the hub has published in the node's tree.
func (r *Rules) Follow(topic string) {
	if strings.HasPrefix(topic, topics.TopicOf(r.o.Node, "rules/")) {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
}

// Wanted are the topics of the node's broker that Rules want at the hub.
func (r *Rules) Wanted() (list []string) {
	next := r.o.Retained(topics.Address{Node: r.o.Node, Kind: topics.KindRuleSource, Device: "+"}.String())
	for page := next(100); len(page) > 0; page = next(100) {
		for _, m := range page {
			var source resource.RuleSource
			_ = json.Unmarshal(m.Payload, &source) // what can't be read is nothing
			for _, topic := range source.Topics {
				if topics.CheckTopic(topic) == nil && !topics.IsTree(topic) {
					list = append(list, topic)
				}
			}
		}
	}
	return list
}

// Run has keep called with the topics that Rules want whenever these have changed, until ctx ends.
func (r *Rules) Run(ctx context.Context, keep func(filters []string) error) error {
	for {
		if err := keep(r.Wanted()); err != nil {
			r.o.Log.Error().Err(err).Msg("the topics that Rules want can't be forwarded")
		}
		select {
		case <-r.changed:
		case <-ctx.Done():
			return nil
		}
	}
}
