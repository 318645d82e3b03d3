package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// The reviews tell clients what they may do, and who they are taken for: kubectl auth can-i,
// can-i --list and whoami. They are answered from the same rules as requests.
const (
	accessRoot = "/apis/authorization.k8s.io/v1"
	whoRoot    = "/apis/authentication.k8s.io/v1"
)

// maxReview bounds a review's body, in bytes.
const maxReview = 64 << 10

// accessSpec is what a SelfSubjectAccessReview asks.
type accessSpec struct {
	Resource *struct {
		Namespace   string `json:"namespace,omitempty"`
		Verb        string `json:"verb,omitempty"`
		Group       string `json:"group,omitempty"`
		Version     string `json:"version,omitempty"`
		Resource    string `json:"resource,omitempty"`
		Subresource string `json:"subresource,omitempty"`
		Name        string `json:"name,omitempty"`
	} `json:"resourceAttributes,omitempty"`
	Path *struct {
		Path string `json:"path,omitempty"`
		Verb string `json:"verb,omitempty"`
	} `json:"nonResourceAttributes,omitempty"`
}

func (s *server) accessReview(w http.ResponseWriter, r *http.Request) error {
	media := mediaType(r)
	r.Body = http.MaxBytesReader(w, r.Body, maxReview)
	raw, _, err := body(r, media, protobufType)
	if err != nil {
		return err
	}
	var review struct {
		Spec accessSpec `json:"spec"`
	}
	if media == protobufType {
		review.Spec, err = accessSpecOf(raw)
	} else {
		err = json.Unmarshal(raw, &review)
	}
	if err != nil {
		return badRequest("", "the body must be a SelfSubjectAccessReview")
	}
	allowed, err := s.answers(r, review.Spec)
	if err != nil {
		return err
	}
	status := dict{"allowed": allowed}
	if a := accessIn(r.Context()); !a.all || !allowed {
		status["reason"] = a.rule
	}
	writeReview(w, accessRoot, "SelfSubjectAccessReview", dict{"spec": review.Spec, "status": status})
	return nil
}

func writeReview(w http.ResponseWriter, root, kind string, review dict) {
	review["apiVersion"], review["kind"], review["metadata"] = strings.TrimPrefix(root, "/apis/"), kind, dict{"creationTimestamp": nil}
	writeJSON(w, http.StatusCreated, review)
}

func (s *server) answers(r *http.Request, spec accessSpec) (bool, error) {
	a := accessIn(r.Context())
	switch {
	case a.all && spec.Resource == nil:
		return true, nil
	case spec.Path != nil:
		return spec.Path.Verb == "get" && a.mayRead(spec.Path.Path), nil
	case spec.Resource == nil:
		return false, nil
	}
	q := spec.Resource
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool { return k.Plural == q.Resource && k.Group == q.Group })
	if i < 0 {
		return a.all, nil
	}
	k := &s.Kinds[i]
	if a.all {
		return a.mayOn(q.Verb, k, q.Subresource, q.Name), nil
	}
	known := slices.Contains(verbs, q.Verb) || q.Verb == "*"
	if !known || !a.mayOn(q.Verb, k, q.Subresource, q.Name) || q.Subresource != "" && (q.Subresource != "status" || k.NoStatus) {
		return false, nil
	}
	if q.Name == "" || k.Node == nil {
		return true, nil // of some of them
	}
	key := store.Key{Kind: k.record(), Name: q.Name}
	if k.Namespaced {
		key.Namespace = q.Namespace
	}
	stored, err := s.Reader.Get(r.Context(), key)
	if errors.Is(err, resource.NotFound) {
		return k.Namespaced || a.has(q.Name), nil
	}
	return err == nil && s.seesStored(r.Context(), a, k, stored), err
}

// rulesReview lists what the user may do. That holds for the user's own nodes only, which the form
// can't say: so it is incomplete.
func (s *server) rulesReview(w http.ResponseWriter, r *http.Request) error {
	a := accessIn(r.Context())
	rules := []any{}
	for i := range s.Kinds {
		k := &s.Kinds[i]
		may := slices.DeleteFunc(slices.Clone(verbs), func(verb string) bool { return !a.may(verb, k) })
		if len(may) > 0 {
			plurals := []string{k.Plural}
			switch {
			case k.NoStatus:
			case k.Reports == "" || a.controls:
				plurals = append(plurals, k.Plural+"/status")
			case a.may("get", k):
				rules = append(rules, dict{"verbs": []string{"get"}, "apiGroups": []string{k.Group}, "resources": []string{k.Plural + "/status"}})
			}
			rules = append(rules, dict{"verbs": may, "apiGroups": []string{k.Group}, "resources": plurals})
		}
		own := slices.DeleteFunc(slices.Clone(a.nodes), func(node string) bool { return !a.mayReport("update", k, "status", node) })
		if len(own) > 0 {
			rules = append(rules, dict{
				"verbs": []string{"patch", "update"}, "apiGroups": []string{k.Group}, "resources": []string{k.Plural + "/status"}, "resourceNames": own,
			})
		}
	}
	paths := []string{"*"}
	if !a.shared {
		paths = slices.Concat(public, []string{"/", "/api", "/api/*", "/apis", "/apis/*", "/openapi/*"})
	}
	writeReview(w, accessRoot, "SelfSubjectRulesReview", dict{"spec": dict{}, "status": dict{
		"resourceRules": rules, "nonResourceRules": []any{dict{"verbs": []string{"get"}, "nonResourceURLs": paths}}, "incomplete": !a.all,
	}})
	return nil
}

// whoReview says who the user is taken for.
func (s *server) whoReview(w http.ResponseWriter, r *http.Request) error {
	a := accessIn(r.Context())
	user := dict{"username": a.user, "groups": []string{a.role}}
	if len(a.nodes) > 0 {
		user["extra"] = dict{"nodes": a.nodes}
	}
	writeReview(w, whoRoot, "SelfSubjectReview", dict{"status": dict{"userInfo": user}})
	return nil
}

// accessSpecOf reads a SelfSubjectAccessReview in protobuf: an envelope, whose field 2 is the
// object, whose field 2 is the spec.
func accessSpecOf(raw []byte) (spec accessSpec, err error) {
	raw, ok := bytes.CutPrefix(raw, protobufMagic)
	if !ok {
		return spec, errProtobuf
	}
	for range 2 {
		fields, err := texts(raw)
		if err != nil {
			return spec, err
		}
		raw = fields[2]
	}
	asked, err := texts(raw)
	if err != nil {
		return spec, err
	}
	fields, err := texts(asked[1])
	if err != nil {
		return spec, err
	}
	said := map[string]dict{}
	if len(asked[1]) > 0 {
		said["resourceAttributes"] = byNumber(fields, "namespace", "verb", "group", "version", "resource", "subresource", "name")
	}
	if fields, err = texts(asked[2]); err != nil {
		return spec, err
	}
	if len(asked[2]) > 0 {
		said["nonResourceAttributes"] = byNumber(fields, "path", "verb")
	}
	text, err := json.Marshal(said)
	if err != nil {
		return spec, err
	}
	return spec, json.Unmarshal(text, &spec)
}

// byNumber gives the fields 1, 2 and so on their names.
func byNumber(fields map[protowire.Number][]byte, names ...string) dict {
	out := dict{}
	for i, name := range names {
		out[name] = string(fields[protowire.Number(i+1)])
	}
	return out
}

// texts are the fields of a message that are texts or messages themselves.
func texts(raw []byte) (map[protowire.Number][]byte, error) {
	fields := map[protowire.Number][]byte{}
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return nil, errProtobuf
		}
		raw = raw[n:]
		if kind == protowire.BytesType {
			fields[number], n = protowire.ConsumeBytes(raw)
		} else {
			n = protowire.ConsumeFieldValue(number, kind, raw)
		}
		if n < 0 {
			return nil, errProtobuf
		}
		raw = raw[n:]
	}
	return fields, nil
}
