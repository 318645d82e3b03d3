// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// HeaderRule names the Rule in requests and answers.
const HeaderRule = "Edgebus-Rule"

// deliveryWait is how long the answer to a message waits for the node, which says more than that the message is stored.
const deliveryWait = 5 * time.Second

// httpError is an answer with a status of HTTP.
type httpError struct {
	code int
	err  error
}

func (e *httpError) Error() string   { return e.err.Error() }
func (e *httpError) HTTPStatus() int { return e.code }

func httpErrorf(code int, format string, args ...any) error {
	return &httpError{code, fmt.Errorf(format, args...)}
}

// Request finds the Rule that a request is for: the node that it is about, whose operator the sender must be, and what serves it. nil: no Rule has that path.
func (e *Engine) Request(r *http.Request) (node string, serve func(http.ResponseWriter, *http.Request) error) {
	rule, node, rest := e.ruleOf(r.URL)
	if rule == nil {
		return "", nil
	}
	return node, func(w http.ResponseWriter, r *http.Request) error {
		// What a service says must not act as a page of the hub.
		w.Header().Set("Content-Security-Policy", "sandbox")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set(HeaderRule, rule.name())
		if _, err := e.o.Reader.Get(r.Context(), store.Key{Kind: resource.KindNode, Name: node}); err != nil {
			if errors.Is(err, resource.NotFound) {
				return httpErrorf(http.StatusNotFound, "there is no Node %s", node)
			}
			return err
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, resource.MaxRuleBody))
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			return httpErrorf(http.StatusRequestEntityTooLarge, "a Rule carries at most %d bytes; put more into a blob, or into parts", resource.MaxRuleBody)
		}
		if err != nil {
			return httpErrorf(http.StatusBadRequest, "the body can't be read: %v", err)
		}
		if rule.target != "" {
			return e.publish(w, r, rule, node, rest, body)
		}
		return e.callService(w, r, rule, node, rest, body)
	}
}

// publish serves a request that becomes a message.
func (e *Engine) publish(w http.ResponseWriter, r *http.Request, rule *activeRule, node string, rest []string, body []byte) error {
	if r.Method != http.MethodPost && r.Method != http.MethodPut {
		w.Header().Set("Allow", "POST, PUT")
		return httpErrorf(http.StatusMethodNotAllowed, "this Rule publishes what is sent with POST or PUT")
	}
	topic := rule.target
	if len(rest) > 0 {
		more, err := url.PathUnescape(strings.Join(rest, "/"))
		if err != nil {
			return httpErrorf(http.StatusBadRequest, "the path can't be read: %v", err)
		}
		topic = strings.TrimSuffix(topic, "/") + "/" + more
	}
	if err := topics.CheckTopic(topic); err != nil || topics.IsTree(topic) {
		return httpErrorf(http.StatusBadRequest, "the path gives the topic %s, to which nothing can be published", topics.QuoteTopic(topic))
	}
	if _, err := textOf(resource.RuleRequest{Rule: rule.name(), Topic: topic}); err != nil {
		return httpErrorf(http.StatusRequestURITooLong, "%w", err)
	}
	delivered, err := e.send(r.Context(), node, waitingMessage{Rule: rule.key.Name, Space: rule.key.Namespace, Topic: topic, Payload: body})
	if err != nil {
		e.count(rule.key, 0, 1, err)
		return err
	}
	wait := deliveryWait
	if e.coreOf(node) == "" {
		wait = 0
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err := <-delivered:
		if err != nil {
			return httpErrorf(http.StatusBadGateway, "%w", err)
		}
		writeText(w, http.StatusOK, "message delivered")
	case <-timer.C:
		writeText(w, http.StatusAccepted, fmt.Sprintf("message stored: node %s does not take it now, and gets it, in order, when it does, within %s (rules.age)", node, e.o.Age))
	case <-r.Context().Done():
	}
	return nil
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text+"\n") // the client may be gone
}

// callService serves a request that goes to a service of a node.
func (e *Engine) callService(w http.ResponseWriter, r *http.Request, rule *activeRule, node string, rest []string, body []byte) error {
	header, fits := resource.CarriedHeader(r.Header)
	if !fits {
		return httpErrorf(http.StatusRequestHeaderFieldsTooLarge, "a Rule carries at most %d bytes of headers", resource.MaxRuleHeader)
	}
	path := (&url.URL{Path: rule.targetPath}).EscapedPath()
	if len(rest) > 0 {
		path = strings.TrimSuffix(path, "/") + "/" + strings.Join(rest, "/")
	}
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	ctx, cancel := context.WithTimeout(r.Context(), e.o.Timeout)
	defer cancel()
	answer, err := e.ask(ctx, node, resource.RuleRequest{Rule: rule.name(), Port: rule.port, Method: r.Method, Path: path, Header: header}, body)
	if err == nil && answer.Code != "" {
		err = &httpError{statusOfCode(answer.Code), fmt.Errorf("node %s: %s", node, answer.Error)}
	}
	if err != nil && r.Context().Err() == nil {
		err = serviceError(w, node, e.o.Timeout, err)
		e.count(rule.key, 0, 1, err)
	}
	if err != nil {
		return err
	}
	e.count(rule.key, 1, 0, nil)
	carried, _ := resource.CarriedHeader(answer.Header)
	for name, values := range carried {
		if w.Header().Get(name) == "" { // not those that keep it from acting as a page
			w.Header()[http.CanonicalHeaderKey(name)] = values
		}
	}
	status := answer.Status
	if status < 200 || status > 599 {
		return httpErrorf(http.StatusBadGateway, "node %s: the service answered with the status %d", node, status)
	}
	w.WriteHeader(status)
	_, _ = w.Write(answer.body) // the client may be gone
	return nil
}

// serviceError is an error of a request to a service, with what to do.
func serviceError(w http.ResponseWriter, node string, timeout time.Duration, err error) error {
	switch {
	case errors.Is(err, errAway):
		w.Header().Set("Retry-After", "10")
		return httpErrorf(http.StatusServiceUnavailable, "node %s: %w; the request was not kept: send it again when the node is online", node, err)
	case errors.Is(err, errBusy):
		w.Header().Set("Retry-After", "1")
		return httpErrorf(http.StatusServiceUnavailable, "node %s: %w: send it again", node, err)
	case errors.Is(err, errLong):
		return httpErrorf(http.StatusRequestHeaderFieldsTooLarge, "%w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return httpErrorf(http.StatusGatewayTimeout, "no answer of node %s within %s (rules.timeout): it may or may not have been done", node, timeout)
	case errors.Is(err, errLost):
		return httpErrorf(http.StatusBadGateway, "node %s: %w", node, err)
	}
	return err
}

// statusOfCode is the status for what a node says of a request that it didn't do.
func statusOfCode(code resource.ErrorKind) int {
	switch code {
	case resource.Forbidden:
		return http.StatusForbidden
	case resource.Quota:
		return http.StatusServiceUnavailable
	case resource.Gone:
		return http.StatusGatewayTimeout
	case resource.Invalid:
		return http.StatusBadRequest
	}
	return http.StatusBadGateway
}
