// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// deviceRoot is the path of a Device, below which are its properties and commands.
const deviceRoot = "/apis/" + resource.APIVersion + "/namespaces/{namespace}/devices/{name}"

// device is the Device that a path is about, if the user may do that with it.
func (s *server) device(r *http.Request, verb string) (d resource.Device, err error) {
	r.Form = r.URL.Query()
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool { return k.Name == resource.KindDevice && k.dialect == nil })
	req := &request{Request: r, kind: &s.Kinds[i], key: store.Key{Kind: resource.KindDevice, Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}}
	a := accessIn(r.Context())
	if !a.may(verb, req.kind) {
		return d, req.forbidden(a, req.key.Name)
	}
	stored, err := s.Reader.Get(r.Context(), req.key)
	if err != nil {
		return d, s.lister.suggest(req, req.about(req.key.Name, err))
	}
	if !s.authorizer.hasStored(r.Context(), a, req.kind, stored) {
		return d, req.forbidden(a, req.key.Name)
	}
	if err := json.Unmarshal(stored.Data, &d); err != nil {
		return d, errUnreadable(stored.Key)
	}
	if len(stored.Status) > 0 && json.Unmarshal(stored.Status, &d.Status) != nil {
		return d, errUnreadable(stored.Key)
	}
	return d, nil
}

// property serves a property of a Device: what its model says of it, and its values.
func (s *server) property(w http.ResponseWriter, r *http.Request) error {
	d, err := s.device(r, "get")
	if err != nil {
		return err
	}
	m, err := objects.Get[resource.DeviceModel](r.Context(), s.reads, store.Key{Namespace: d.Metadata.Namespace, Name: d.Spec.DeviceModelRef.Name})
	if err != nil {
		return err
	}
	name := r.PathValue("property")
	var names []string
	for _, p := range m.Spec.Properties {
		if p.Name != name {
			names = append(names, p.Name)
			continue
		}
		writeJSON(w, http.StatusOK, struct {
			Device   string            `json:"device"`
			Property resource.Property `json:"property"`
			resource.TwinProperty
		}{d.Metadata.Name, p, d.Status.Twin[name]})
		return nil
	}
	return statusErrorf(http.StatusNotFound, "NotFound", "property %.100q of device %s not found: the model %s has none of that name%s", name, d.Metadata.Name,
		m.Metadata.Name, resource.DidYouMean(name, names))
}

// command sends a command to a Device, with the body as its payload, and answers with its answer.
func (s *server) command(w http.ResponseWriter, r *http.Request) error {
	if s.Devices.Call == nil {
		return statusErrorf(http.StatusNotFound, "NotFound", "no commands are sent here")
	}
	d, err := s.device(r, "update")
	if err != nil {
		return err
	}
	var timeout time.Duration
	if text := r.FormValue("timeout"); text != "" {
		if timeout, err = time.ParseDuration(text); err != nil || timeout < time.Second {
			return badRequest("timeout", "timeout %.20q is no time of at least a second, such as 10s", text)
		}
	}
	payload, err := io.ReadAll(r.Body)
	if errors.As(err, new(*http.MaxBytesError)) {
		return err
	}
	if err != nil {
		return badRequest("", "the body can't be read: %v", err)
	}
	if d.Spec.NodeName == "" {
		return statusErrorf(http.StatusConflict, "Conflict", "device %s is on no node (spec.nodeName), and gets no commands", d.Metadata.Name)
	}
	topic := topics.Address{Node: d.Spec.NodeName, Kind: topics.KindCommand, Device: d.Metadata.Name, Name: r.PathValue("command")}
	if !topics.ValidName(topic.Name) {
		return badRequest("command", "%.100q is no name of a command: %s", topic.Name, topics.NameRule())
	}
	answer, err := s.Devices.Call(r.Context(), accessIn(r.Context()).id, topic.String(), payload, timeout)
	if err != nil {
		return err
	}
	code, ok := commandStatus[answer.Code]
	if !ok {
		code = http.StatusBadGateway
	}
	writeJSON(w, code, answer)
	return nil
}

// CommandAnswer is how a command ended.
type CommandAnswer struct {
	Code topics.AnswerCode `json:"code"`
	// Payload is the answer, as text; Bytes is one that is no text, as base64.
	Payload string `json:"payload,omitempty"`
	Bytes   []byte `json:"bytes,omitempty"`
	Error   string `json:"error,omitempty"`
}

// commandStatus is the status of each code of an answer. Of a mapper's own codes it is 502.
var commandStatus = map[topics.AnswerCode]int{
	topics.CodeOK: http.StatusOK, topics.CodeRefused: http.StatusUnprocessableEntity, topics.CodeBusy: http.StatusTooManyRequests,
	topics.CodeNodeOffline: http.StatusServiceUnavailable, topics.CodeMapperOffline: http.StatusServiceUnavailable, topics.CodeDeviceOffline: http.StatusServiceUnavailable,
	topics.CodeLost: http.StatusServiceUnavailable, topics.CodeExpired: http.StatusGatewayTimeout, topics.CodeFailed: http.StatusBadGateway,
}
