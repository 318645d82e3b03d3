package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// Status is how Kubernetes says that something went wrong, or that it is done.
type Status struct {
	Kind       string         `json:"kind"`
	APIVersion string         `json:"apiVersion"`
	Metadata   struct{}       `json:"metadata"`
	Status     string         `json:"status"`
	Message    string         `json:"message,omitempty"`
	Reason     string         `json:"reason,omitempty"`
	Details    *StatusDetails `json:"details,omitempty"`
	Code       int            `json:"code,omitempty"`
}

// StatusDetails say what a Status is about.
type StatusDetails struct {
	Name              string        `json:"name,omitempty"`
	Group             string        `json:"group,omitempty"`
	Kind              string        `json:"kind,omitempty"`
	UID               string        `json:"uid,omitempty"`
	Causes            []StatusCause `json:"causes,omitempty"`
	RetryAfterSeconds int           `json:"retryAfterSeconds,omitempty"`
}

// StatusCause is one broken rule.
type StatusCause struct {
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Field   string `json:"field,omitempty"`
}

// httpError is an error that is HTTP's own, or that knows what it is about.
type httpError struct {
	code    int
	reason  string
	message string
	details *StatusDetails
	err     error
}

func (e *httpError) Error() string { return e.message }
func (e *httpError) Unwrap() error { return e.err }

func refuse(code int, reason, format string, args ...any) error {
	return &httpError{code: code, reason: reason, message: fmt.Sprintf(format, args...)}
}

// badRequest says that a request is not understood; field may be empty.
func badRequest(field, format string, args ...any) error {
	e := &httpError{code: http.StatusBadRequest, reason: "BadRequest", message: fmt.Sprintf(format, args...)}
	if field != "" {
		e.details = &StatusDetails{Causes: []StatusCause{{Reason: "FieldValueInvalid", Message: e.message, Field: field}}}
	}
	return e
}

// codes is the one place where a kind of error becomes an HTTP status.
func codes(kind resource.ErrorKind) (code int, reason string) {
	switch kind {
	case resource.Invalid:
		return http.StatusUnprocessableEntity, "Invalid"
	case resource.NotFound, resource.BadTopic:
		return http.StatusNotFound, "NotFound"
	case resource.AlreadyExists:
		return http.StatusConflict, "AlreadyExists"
	case resource.Conflict:
		return http.StatusConflict, "Conflict"
	case resource.Unauthorized:
		return http.StatusUnauthorized, "Unauthorized"
	case resource.Forbidden:
		return http.StatusForbidden, "Forbidden"
	case resource.TooLarge:
		return http.StatusRequestEntityTooLarge, "RequestEntityTooLarge"
	case resource.Quota:
		return http.StatusTooManyRequests, "TooManyRequests"
	case resource.Gone:
		return http.StatusGone, "Expired"
	case resource.Unavailable:
		return http.StatusServiceUnavailable, "ServiceUnavailable"
	}
	return http.StatusInternalServerError, "InternalError"
}

func statusOf(err error) Status {
	st := Status{Kind: "Status", APIVersion: "v1", Status: "Failure", Message: err.Error()}
	var he *httpError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &he):
		st.Code, st.Reason, st.Details = he.code, he.reason, he.details
	case errors.As(err, &tooLarge):
		st.Code, st.Reason = codes(resource.TooLarge)
		st.Message = fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		st.Code, st.Reason = http.StatusGatewayTimeout, "Timeout"
	default:
		st.Code, st.Reason = codes(resource.KindOf(err))
	}
	if st.Code == http.StatusInternalServerError {
		st.Message = "internal error" // what went wrong is for the log
	}
	return st
}

// about names the object in an error of the store or the rules, the way that
// Kubernetes words it: clients know some of these sentences.
func (r *request) about(name string, err error) error {
	var re *resource.Error
	var he *httpError
	if err == nil || errors.As(err, &he) || !errors.As(err, &re) {
		return err
	}
	code, reason := codes(re.Kind)
	e := &httpError{code: code, reason: reason, err: err}
	e.details = &StatusDetails{Name: name, Group: r.kind.Group, Kind: r.kind.Plural}
	qualified := r.kind.qualified()
	switch re.Kind {
	case resource.NotFound:
		e.message = fmt.Sprintf("%s %q not found", qualified, name)
	case resource.AlreadyExists:
		e.message = fmt.Sprintf("%s %q already exists", qualified, name)
		if re.Field != "" {
			e.message += ": " + re.Message
		}
	case resource.Conflict:
		e.message = fmt.Sprintf("Operation cannot be fulfilled on %s %q: the object has been modified; please apply your changes to the latest version and try again: %s", qualified, name, re.Message)
	case resource.Invalid:
		e.message = fmt.Sprintf("%s %q is invalid: %s", strings.TrimSuffix(r.kind.Name+"."+r.kind.Group, "."), name, re.Error())
		e.details.Kind = r.kind.Name
		e.details.Causes = causes(re)
	default:
		e.message = err.Error()
		e.details.Causes = causes(re)
	}
	return e
}

func causes(e *resource.Error) (out []StatusCause) {
	list := e.Causes
	if len(list) == 0 && e.Field != "" {
		list = []resource.Cause{{Field: e.Field, Message: e.Message}}
	}
	for _, c := range list {
		out = append(out, StatusCause{Reason: "FieldValueInvalid", Message: c.Message, Field: c.Field})
	}
	return out
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // our own types: can't happen
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	sendJSON(w, code, body)
}

// sendJSON sends a line of JSON.
func sendJSON(w http.ResponseWriter, code int, body []byte) {
	if !bytes.HasSuffix(body, []byte("\n")) {
		body = append(body, '\n')
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body) // a client that went away needs no answer
}
