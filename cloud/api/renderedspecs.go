// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/dialect"
	"github.com/edgebus/edgebus/topics/resource"
)

// What a node is to apply, as package cloud/render made it of its spec: below the Node itself as the node's agent gets it over MQTT,
// and below flightctl's paths as flightctl's agent asks for it.

// apiVersionHeader names the version that a client of flightctl's own paths wants.
const apiVersionHeader = "Flightctl-API-Version"

// renderedVersions are flightctl's versions of a Device, the one first that its agent of today asks for.
var renderedVersions = []string{"v1beta1", "v1alpha1"}

// Presence has the nodes that are present by their requests.
type Presence interface {
	AskedOverHTTP(node string) (answered func())
	HTTPPresence() time.Duration
}

// renderedSpecs serves what nodes are to apply.
type renderedSpecs struct {
	reader    store.Reader
	reads     *objects.Controller
	presence  Presence                                                 // nil: nobody is told
	readBlob  func(digest string, p []byte, offset int64) (int, error) // nil: there are no blobs
	secretLog zerolog.Logger
}

func (s *server) renderedRoutes(mux *http.ServeMux) {
	mux.Handle("GET /apis/"+resource.APIVersion+"/nodes/{name}/rendered", s.handle(s.renderedSpecs.renderedNode))
	mux.Handle("GET /api/v1/devices/{name}/rendered", s.handle(s.renderedSpecs.renderedDevice))
	for _, version := range renderedVersions {
		mux.Handle("GET /apis/flightctl.io/"+version+"/devices/{name}/rendered", s.handle(s.renderedSpecs.renderedDevice))
	}
}

// renderedNode serves a RenderedSpec, with the digests of its blobs and the names of its Secrets.
func (rs *renderedSpecs) renderedNode(w http.ResponseWriter, r *http.Request) error {
	spec, err := rs.rendered(w, r)
	if spec == nil || err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		resource.TypeMeta
		Metadata resource.Meta `json:"metadata"`
		resource.RenderedSpec
	}{resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindRenderedSpec}, resource.Meta{Name: r.PathValue("name")}, *spec})
	return nil
}

// renderedDevice serves the same as flightctl's agent reads it, with the contents of all files. Values of Secrets are for the node
// itself, which has no other way to them, and for no other client.
func (rs *renderedSpecs) renderedDevice(w http.ResponseWriter, r *http.Request) error {
	version := renderedVersions[0]
	if group, below, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/apis/"), "/"); ok && group == "flightctl.io" {
		version, _, _ = strings.Cut(below, "/")
	} else if asked := r.Header.Get(apiVersionHeader); asked != "" {
		w.Header().Add("Vary", apiVersionHeader)
		if version = asked; !slices.Contains(renderedVersions, version) {
			return statusErrorf(http.StatusNotAcceptable, "NotAcceptable", "%s: %.40q is not served here; %s are", apiVersionHeader, asked, strings.Join(renderedVersions, " and "))
		}
	}
	w.Header().Set(apiVersionHeader, version)
	spec, err := rs.rendered(w, r)
	if spec == nil || err != nil {
		return err
	}
	a, name := accessIn(r.Context()), r.PathValue("name")
	own := a.role == string(topics.RoleNode) && a.hasNode(name)
	raw, left, err := dialect.RenderedDevice(version, name, *spec, func(f resource.RenderedFile) (content []byte, secret bool, err error) {
		switch {
		case f.Secret != nil && own:
			content, err = rs.secretValue(r, *f.Secret)
		case f.Secret != nil:
			secret = true
		case f.Digest != "":
			content, err = rs.content(f.Digest, f.Size)
		case f.Text != "":
			content = []byte(f.Text)
		default:
			content = f.Base64
		}
		return content, secret, err
	})
	if errors.Is(err, resource.NotFound) {
		return answerNotRendered(w, "a Secret that the spec refers to has just been deleted")
	}
	if err != nil {
		return err
	}
	if len(left) > 0 {
		addWarning(w, "flightctl.io/%s has no directories and links: %s left out", version, objects.JoinFirst(left))
	}
	sendJSON(w, http.StatusOK, raw)
	return nil
}

// rendered is the rendered spec that answers a request; nil if it has been answered: 204 if the client has that version, 202 if
// the spec that is wanted now is not rendered yet.
func (rs *renderedSpecs) rendered(w http.ResponseWriter, r *http.Request) (*resource.RenderedSpec, error) {
	a, name := accessIn(r.Context()), r.PathValue("name")
	if !a.reads || !a.hasNode(name) {
		return nil, statusErrorf(http.StatusForbidden, "Forbidden", "nodes.edgebus.io %q is forbidden: User %q cannot get resource \"nodes/rendered\" in API group %q: %s", name, a.user, resource.Group, a.rule)
	}
	r.Form = r.URL.Query()
	node, err := objects.Get[resource.Node](r.Context(), rs.reads, store.Key{Name: name})
	if errors.Is(err, resource.NotFound) {
		return nil, statusErrorf(http.StatusNotFound, "NotFound", "Device of name %q not found: there is no such Node", name) // flightctl's agent looks for its words
	}
	if err != nil {
		return nil, err
	}
	defer rs.present(w, a, name)()
	record, err := rs.reader.Get(r.Context(), store.Key{Kind: resource.KindRenderedSpec, Name: name})
	if err != nil && !errors.Is(err, resource.NotFound) {
		return nil, err
	}
	spec, pending := new(resource.RenderedSpec), notRenderedReason(*node)
	switch {
	case err == nil:
		if err := json.Unmarshal(record.Data, spec); err != nil {
			return nil, err
		}
	case reflect.ValueOf(node.Spec).IsZero():
		spec.RenderedVersion, pending = "0", "" // nothing has ever been wanted of it
	default:
		return nil, answerNotRendered(w, pending)
	}
	switch known := r.Form.Get("knownRenderedVersion"); {
	case known != spec.RenderedVersion:
		return spec, nil
	case pending != "":
		return nil, answerNotRendered(w, pending)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil, nil
}

// presenceHeader names, in seconds, for how long after an answer a node that speaks HTTP counts as present.
const presenceHeader = "Edgebus-Presence"

// present notes that a node is present which asks for its own, and says for how long it is.
func (rs *renderedSpecs) present(w http.ResponseWriter, a access, node string) (answered func()) {
	if rs.presence == nil || a.role != string(topics.RoleNode) || !a.hasNode(node) {
		return func() {}
	}
	w.Header().Set(presenceHeader, strconv.Itoa(int(rs.presence.HTTPPresence().Seconds())))
	return rs.presence.AskedOverHTTP(node)
}

// notRenderedReason says why the present spec of a Node is not rendered; empty: it is.
func notRenderedReason(n resource.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type != resource.ConditionSpecRendered || c.ObservedGeneration < n.Metadata.Generation {
			continue
		}
		if c.Status == "True" {
			return ""
		}
		return c.Message
	}
	return "the spec is being rendered"
}

// answerNotRendered answers that the client is to ask again.
func answerNotRendered(w http.ResponseWriter, why string) error {
	w.Header().Set("Retry-After", "5")
	writeJSON(w, http.StatusAccepted, map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Success", "code": http.StatusAccepted, "reason": "NotRendered", "message": why,
	})
	return nil
}

// secretValue reads a value of a Secret.
func (rs *renderedSpecs) secretValue(r *http.Request, of resource.SecretKey) ([]byte, error) {
	namespace, name, _ := strings.Cut(of.Name, ".")
	key := store.Key{Kind: resource.KindSecret, Namespace: namespace, Name: name}
	secret, err := objects.Get[resource.Secret](r.Context(), rs.reads, key)
	if err != nil {
		return nil, err
	}
	value, ok := secret.Data[of.Key]
	if !ok {
		return nil, store.NotFound(key)
	}
	rs.secretLog.Info().Str("user", accessIn(r.Context()).user).Str("remote", r.RemoteAddr).Str("verb", "get").
		Str("namespace", namespace).Str("name", name).Msg("Secrets asked for")
	return value, nil
}

// maxContent bounds a blob that is served within a Device of flightctl, in bytes. A node's own agent gets larger ones from its core.
const maxContent = 16 << 20

// content reads a blob whole.
func (rs *renderedSpecs) content(digest string, size int64) ([]byte, error) {
	if rs.readBlob == nil {
		return nil, resource.Errorf(resource.Unavailable, "", "this hub has no blobs")
	}
	if size < 0 || size > maxContent {
		return nil, resource.Errorf(resource.TooLarge, "", "the content %s has %d bytes; at most %d are served in this form", digest, size, maxContent)
	}
	data := make([]byte, size+1) // one more: a blob that is longer than the spec says is another one
	n, err := rs.readBlob(digest, data, 0)
	if int64(n) == size {
		return data[:size], nil
	}
	return nil, errors.Join(resource.Errorf(resource.Unavailable, "", "the content %s can't be read now", digest), err)
}
