// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/topics/resource"
)

// statusError is an error with the Status that answers it.
type statusError struct {
	status metav1.Status
	err    error  // that caused it; may be nil
	allow  string // the methods that are served; empty: another method makes no difference
}

func (e *statusError) Error() string { return e.status.Message }
func (e *statusError) Unwrap() error { return e.err }

// statusErrorf makes an error of an HTTP status.
func statusErrorf(code int, reason, format string, args ...any) *statusError {
	return &statusError{status: metav1.Status{Code: int32(code), Reason: metav1.StatusReason(reason), Message: fmt.Sprintf(format, args...)}}
}

// methodNotAllowed refuses a method. Allow lists those that are served, as HTTP requires of the answer.
func methodNotAllowed(allow, format string, args ...any) *statusError {
	e := statusErrorf(http.StatusMethodNotAllowed, "MethodNotAllowed", format, args...)
	e.allow = allow
	return e
}

// withCauses adds the fields that are at fault.
func (e *statusError) withCauses(causes ...metav1.StatusCause) *statusError {
	if e.status.Details == nil {
		e.status.Details = new(metav1.StatusDetails)
	}
	e.status.Details.Causes = append(e.status.Details.Causes, causes...)
	return e
}

// badRequest makes an error about a request that can't be understood; field may be empty.
func badRequest(field, format string, args ...any) error {
	e := statusErrorf(http.StatusBadRequest, "BadRequest", format, args...)
	if field == "" {
		return e
	}
	return e.withCauses(metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Message: e.status.Message, Field: field})
}

// statusReason is an HTTP status, and its reason in a Status.
type statusReason struct {
	code   int
	reason string
}

var statusReasons = map[resource.ErrorKind]statusReason{
	resource.Invalid:       {http.StatusUnprocessableEntity, "Invalid"},
	resource.NotFound:      {http.StatusNotFound, "NotFound"},
	resource.BadTopic:      {http.StatusNotFound, "NotFound"},
	resource.AlreadyExists: {http.StatusConflict, "AlreadyExists"},
	resource.Conflict:      {http.StatusConflict, "Conflict"},
	resource.Unauthorized:  {http.StatusUnauthorized, "Unauthorized"},
	resource.Forbidden:     {http.StatusForbidden, "Forbidden"},
	resource.TooLarge:      {http.StatusRequestEntityTooLarge, "RequestEntityTooLarge"},
	resource.Quota:         {http.StatusTooManyRequests, "TooManyRequests"},
	resource.Gone:          {http.StatusGone, "Expired"},
	resource.Unavailable:   {http.StatusServiceUnavailable, "ServiceUnavailable"},
}

// kindErrorf is refuse with the status of a kind of error.
func kindErrorf(kind resource.ErrorKind, format string, args ...any) *statusError {
	a, known := statusReasons[kind]
	if !known {
		a = statusReason{http.StatusInternalServerError, "InternalError"}
	}
	return statusErrorf(a.code, a.reason, format, args...)
}

// statusOf is the Status that answers an error.
func statusOf(err error) metav1.Status {
	var known *statusError
	var tooLarge *http.MaxBytesError
	var coded interface{ HTTPStatus() int }
	switch {
	case errors.As(err, &known):
	case errors.As(err, &coded):
		known = statusErrorf(coded.HTTPStatus(), strings.ReplaceAll(http.StatusText(coded.HTTPStatus()), " ", ""), "%v", err)
	case errors.As(err, &tooLarge):
		known = kindErrorf(resource.TooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		known = statusErrorf(http.StatusGatewayTimeout, "Timeout", "%v", err)
	default:
		known = kindErrorf(resource.KindOf(err), "%v", err)
	}
	st := known.status
	st.TypeMeta, st.Status = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, metav1.StatusFailure
	if st.Code == http.StatusInternalServerError {
		st.Message = "internal error" // the log says what
	}
	return st
}

// about names the object in an error of the store or of the rules, in Kubernetes' words, some of which clients know.
func (r *request) about(name string, err error) error {
	var re *resource.Error
	var known *statusError
	var owned *objects.OwnedError
	if errors.As(err, &owned) {
		return statusErrorf(http.StatusConflict, "Conflict", "%v", err).
			withCauses(metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict, Field: owned.Field, Message: "managed by " + owned.Owner})
	}
	if err == nil || errors.As(err, &known) || !errors.As(err, &re) {
		return err
	}
	if d := r.kind.dialect; d != nil && re.Kind == resource.Invalid {
		re = d.OfForm(r.written, re)
	}
	of := schema.GroupResource{Group: r.kind.Group, Resource: r.kind.Plural}
	switch re.Kind {
	case resource.NotFound:
		return &statusError{status: apierrors.NewNotFound(of, name).ErrStatus, err: err}
	case resource.AlreadyExists:
		e := &statusError{status: apierrors.NewAlreadyExists(of, name).ErrStatus, err: err}
		if re.Field != "" {
			e.status.Message += ": " + re.Message
		}
		return e
	case resource.Conflict:
		return &statusError{status: apierrors.NewConflict(of, name, fmt.Errorf("%s: %s", conflictMessage, re.Message)).ErrStatus, err: err}
	}
	e := kindErrorf(re.Kind, "%v", err).withCauses(statusCauses(re)...)
	e.err = err
	d := e.status.Details
	d.Name, d.Group, d.Kind = name, of.Group, of.Resource
	if re.Kind == resource.Invalid {
		e.status.Message = fmt.Sprintf("%s %q is invalid: %s", strings.TrimSuffix(r.kind.Name+"."+of.Group, "."), name, re.Error())
		d.Kind = r.kind.Name
	}
	return e
}

// conflictMessage is what Kubernetes says of a conflict.
const conflictMessage = "the object has been modified; please apply your changes to the latest version and try again"

func statusCauses(e *resource.Error) (out []metav1.StatusCause) {
	list := e.Causes
	if len(list) == 0 && (e.Field != "" || e.Kind == resource.Invalid) {
		list = []resource.Cause{{Field: cmp.Or(e.Field, "object"), Message: e.Message}} // kubectl shows nothing else of what is invalid
	}
	for _, c := range list {
		out = append(out, metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Message: c.Message, Field: c.Field})
	}
	return out
}

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // our own types: can't happen
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	sendJSON(w, code, body)
}

// sendJSON answers with a line of JSON.
func sendJSON(w http.ResponseWriter, code int, body []byte) {
	if !bytes.HasSuffix(body, []byte("\n")) {
		body = append(body, '\n')
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client may be gone
}
