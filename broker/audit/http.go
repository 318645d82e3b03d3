// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"net/http"
	"strings"
)

// verbs are the actions of the Kubernetes API that HTTP methods ask for.
var verbs = map[string]string{
	http.MethodGet: "get", http.MethodHead: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

type identityKey struct{}

// requestIdentity is what a handler finds out about an HTTP request: who sends it, and what it is about.
type requestIdentity struct{ user, roles, name, reason string }

// NoteName notes the name of what a request is about, where its path doesn't say that: of a new object, of a session.
func NoteName(r *http.Request, name string) {
	if id, ok := r.Context().Value(identityKey{}).(*requestIdentity); ok {
		id.name = name
	}
}

// NoteRefusal notes the user name of a failed sign-in, and the reason.
func NoteRefusal(r *http.Request, user, reason string) {
	if id, ok := r.Context().Value(identityKey{}).(*requestIdentity); ok {
		id.user, id.reason = user, reason
	}
}

// NoteUser notes the user of a request. The code that authenticates the request calls it.
func NoteUser(r *http.Request, user, roles string) {
	if id, ok := r.Context().Value(identityKey{}).(*requestIdentity); ok {
		id.user, id.roles = user, roles
	}
}

// Handler logs the requests that write, and those that are refused for want of a right (401 and 403).
func (l *Log) Handler(next http.Handler) http.Handler {
	if l == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, answer := &requestIdentity{}, &statusRecorder{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), identityKey{}, id)))
		verb, known := verbs[r.Method]
		refused := answer.status == http.StatusUnauthorized || answer.status == http.StatusForbidden
		if !known || verb == "get" && !refused || isReview(r.URL.Path) && !refused {
			return
		}
		e := Entry{
			User: id.user, Roles: id.roles, Client: r.UserAgent(), Remote: r.RemoteAddr, Via: HTTP, Action: verb, Object: r.URL.Path, Answer: OK,
		}
		if id.name != "" && !strings.HasSuffix(e.Object, "/"+id.name) {
			e.Object += "/" + id.name
		}
		if r.URL.Query().Has("dryRun") {
			e.Action += " (dry run)"
		}
		if answer.status >= http.StatusBadRequest {
			e.Answer, e.Reason = http.StatusText(answer.status), id.reason
		}
		l.Add(e)
	})
}

// isReview reports whether a POST only asks for something: who one is, and what one may do.
func isReview(path string) bool {
	return strings.HasPrefix(path, "/apis/authorization.k8s.io/") || strings.HasPrefix(path, "/apis/authentication.k8s.io/")
}

// statusRecorder notes the status of an answer.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (a *statusRecorder) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *statusRecorder) Unwrap() http.ResponseWriter { return a.ResponseWriter }
