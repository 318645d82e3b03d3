// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/api/protobuf"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Reviews tell users what they may do and who they are: kubectl auth can-i, can-i --list and whoami. They follow the
// same rules as requests.
const (
	authorizationRoot  = "/apis/authorization.k8s.io/v1"
	authenticationRoot = "/apis/authentication.k8s.io/v1"

	// maxReview bounds the body of a review, in bytes.
	maxReview = 64 << 10
)

// reviewSpec is what a SelfSubjectAccessReview asks.
type reviewSpec struct {
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

// accessReview serves SelfSubjectAccessReviews.
func (z *authorizer) accessReview(w http.ResponseWriter, r *http.Request) error {
	media := mediaType(r)
	r.Body = http.MaxBytesReader(w, r.Body, maxReview)
	raw, err := readBody(r, media, protobuf.MediaType)
	if err != nil {
		return err
	}
	var review struct {
		Spec reviewSpec `json:"spec"`
	}
	if media == protobuf.MediaType {
		if raw, err = protobuf.ReviewSpec(raw); err == nil {
			err = json.Unmarshal(raw, &review.Spec)
		}
	} else {
		err = json.Unmarshal(raw, &review)
	}
	if err != nil {
		return badRequest("", "the body must be a SelfSubjectAccessReview")
	}
	allowed, err := z.allows(r, review.Spec)
	status := jsonObject{"allowed": allowed}
	if a := accessIn(r.Context()); !a.all || !allowed {
		status["reason"] = a.rule
	}
	var missing *unservedError
	switch {
	case errors.As(err, &missing):
		status["reason"] = missing.Error()
	case err != nil:
		return err
	}
	writeReview(w, authorizationRoot, "SelfSubjectAccessReview", jsonObject{"spec": review.Spec, "status": status})
	return nil
}

func writeReview(w http.ResponseWriter, root, kind string, review jsonObject) {
	review["apiVersion"], review["kind"], review["metadata"] = strings.TrimPrefix(root, "/apis/"), kind, jsonObject{"creationTimestamp": nil}
	writeJSON(w, http.StatusCreated, review)
}

// unservedError says that nobody may do what a review asks, since there is nothing of the kind.
type unservedError struct{ verb, of string }

func (e *unservedError) Error() string {
	if e.verb == "" {
		return "this hub has no " + e.of
	}
	return e.of + " can't be asked to " + e.verb
}

// allows reports whether the user may do what a review asks.
func (z *authorizer) allows(r *http.Request, spec reviewSpec) (bool, error) {
	a := accessIn(r.Context())
	switch {
	case a.all && spec.Resource == nil:
		return true, nil
	case spec.Path != nil:
		return spec.Path.Verb == "get" && a.mayUse(spec.Path.Path), nil
	case spec.Resource == nil:
		return false, nil
	}
	q := spec.Resource
	if q.Resource == "*" {
		return a.all, nil // all that users have; what only controllers may is asked by name
	}
	k := z.reviewedKind(q.Group, q.Resource)
	of := resourceName(q.Group, q.Resource, q.Subresource)
	switch {
	case k == nil && isReview(q.Group, q.Resource):
		return q.Verb == "create", nil
	case k == nil:
		return false, &unservedError{of: of}
	case k == &namespaceKind:
		if slices.Contains(namespaceVerbs, q.Verb) && q.Subresource == "" {
			return true, nil
		}
		return false, &unservedError{q.Verb, of}
	}
	has := k.verbs()
	switch q.Subresource {
	case "":
	case "status":
		if has = statusVerbs; k.NoStatus {
			return false, &unservedError{of: of}
		}
	default: // of an EnrollmentRequest there is one more
		if q.Subresource != "approval" || k.Name != resource.KindEnrollmentRequest || k.Group != resource.Group {
			return false, &unservedError{of: of}
		}
		has = []string{"create", "update"}
	}
	asked := []string{q.Verb}
	if q.Verb == "*" {
		asked = has
	}
	for _, verb := range asked {
		switch {
		case !slices.Contains(has, verb):
			return false, &unservedError{verb, of}
		case !a.mayOn(verb, k, q.Subresource, q.Name):
			return false, nil
		}
	}
	if q.Name == "" || a.hasEach(k) {
		return true, nil // for some of them
	}
	key := store.Key{Kind: k.storeKind(), Name: q.Name}
	if k.Namespaced {
		key.Namespace = q.Namespace
	}
	stored, err := z.reader.Get(r.Context(), key)
	if errors.Is(err, resource.NotFound) {
		return k.Namespaced || a.hasNode(q.Name), nil
	}
	return err == nil && z.hasStored(r.Context(), a, k, stored), err
}

// resourceName is what a review calls a resource: devices.edgebus.io/status.
func resourceName(group, plural, subresource string) string {
	name := plural
	if group != "" {
		name += "." + group
	}
	if subresource != "" {
		name += "/" + subresource
	}
	return name
}

// reviewedKind is the kind that a review asks about; nil: there is none.
func (z *authorizer) reviewedKind(group, plural string) *Kind {
	if i := slices.IndexFunc(z.kinds, func(k Kind) bool { return k.Plural == plural && (k.Group == group || group == "*") }); i >= 0 {
		return &z.kinds[i]
	}
	if plural == namespaceKind.Plural && group == namespaceKind.Group {
		return &namespaceKind
	}
	return nil
}

// isReview reports whether a resource is a review, which every user may ask for.
func isReview(group, plural string) bool {
	switch "/apis/" + group + "/v1" {
	case authorizationRoot:
		return plural == "selfsubjectaccessreviews" || plural == "selfsubjectrulesreviews"
	case authenticationRoot:
		return plural == "selfsubjectreviews"
	}
	return false
}

// rulesReview serves SelfSubjectRulesReviews. The rules hold for the user's nodes only, which the form can't say, so they
// are called incomplete.
func (z *authorizer) rulesReview(w http.ResponseWriter, r *http.Request) error {
	a := accessIn(r.Context())
	rules := []any{}
	for i := range z.kinds {
		k := &z.kinds[i]
		groups, status := []string{k.Group}, []string{k.Plural + "/status"}
		may := slices.DeleteFunc(slices.Clone(verbs), func(verb string) bool { return !a.may(verb, k) })
		if len(may) > 0 {
			plurals := []string{k.Plural}
			writes := a.controls || k.desiredInStatus()
			if !k.NoStatus && writes {
				plurals = append(plurals, status...)
			}
			rules = append(rules, jsonObject{"verbs": may, "apiGroups": groups, "resources": plurals})
			if !k.NoStatus && !writes && a.may("get", k) {
				rules = append(rules, jsonObject{"verbs": []string{"get"}, "apiGroups": groups, "resources": status})
			}
		}
		own := slices.DeleteFunc(slices.Clone(a.nodes), func(node string) bool { return !a.mayReport("update", k, "status", node) })
		if len(own) > 0 {
			rules = append(rules, jsonObject{"verbs": []string{"patch", "update"}, "apiGroups": groups, "resources": status, "resourceNames": own})
		}
	}
	paths := []string{"*"}
	if !a.readsShared {
		paths = slices.Concat(publicPaths, []string{"/", "/api", "/api/*", "/apis", "/apis/*", "/openapi/*"})
	}
	writeReview(w, authorizationRoot, "SelfSubjectRulesReview", jsonObject{"spec": jsonObject{}, "status": jsonObject{
		"resourceRules": rules, "nonResourceRules": []any{jsonObject{"verbs": []string{"get"}, "nonResourceURLs": paths}}, "incomplete": !a.all,
	}})
	return nil
}

// subjectReview serves SelfSubjectReviews: who the user is.
func (z *authorizer) subjectReview(w http.ResponseWriter, r *http.Request) error {
	a := accessIn(r.Context())
	user := jsonObject{"username": a.user, "groups": []string{a.role}}
	if len(a.nodes) > 0 {
		user["extra"] = jsonObject{"nodes": a.nodes}
	}
	writeReview(w, authenticationRoot, "SelfSubjectReview", jsonObject{"status": jsonObject{"userInfo": user}})
	return nil
}
