// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// What flightctl's own clients ask for beside its kinds: how to sign in, what there is of organizations, where devices enrol, and how the
// devices are on the whole. docs/dialects.md lists all its calls.

const (
	flightctlRoot = "/api/v1"
	// flightctlConfigPath says how people sign in. Its clients ask for it before they have signed in.
	flightctlConfigPath = flightctlRoot + "/auth/config"
	// organizationID is the identifier that flightctl gives to the organization of a server that has one only.
	organizationID = "00000000-0000-0000-0000-000000000000"
	v1beta1        = "v1beta1" // of the answers that are no objects, without a group, as flightctl has it
)

// flightctlServer serves these calls.
type flightctlServer struct{ server *server }

func (s *server) flightctlRoutes(mux *http.ServeMux) {
	for path, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET " + flightctlConfigPath:                                           s.flightctl.authConfig,
		"GET " + flightctlRoot + "/auth/validate":                              s.flightctl.authValidate,
		"GET " + flightctlRoot + "/auth/userinfo":                              s.flightctl.userInfo,
		"GET " + flightctlRoot + "/auth/permissions":                           s.flightctl.permissions,
		"GET " + flightctlRoot + "/version":                                    s.flightctl.flightctlVersion,
		"GET " + flightctlRoot + "/organizations":                              s.flightctl.organizations,
		"GET " + flightctlRoot + "/enrollmentconfig":                           s.flightctl.enrollmentConfig,
		"GET " + flightctlRoot + "/labels":                                     s.flightctl.labels,
		"GET " + flightctlRoot + "/devices/{name}/lastseen":                    s.flightctl.lastSeen,
		"PUT " + flightctlRoot + "/certificatesigningrequests/{name}/approval": s.enrollment.approveSigning,
	} {
		mux.Handle(path, s.handle(serve))
	}
}

// authConfig tells flightctl login that one signs in with a token: edgebus token create makes one, or a provider of OpenID Connect does.
func (f *flightctlServer) authConfig(w http.ResponseWriter, _ *http.Request) error {
	const name = "edgebus"
	writeJSON(w, http.StatusOK, jsonObject{
		"apiVersion": v1beta1, "defaultProvider": name, "organizationsEnabled": true,
		"providers": []any{jsonObject{
			"apiVersion": v1beta1, "kind": "AuthProvider", "metadata": jsonObject{"name": name},
			"spec": jsonObject{ // the one type of provider whose clients are told that they need a token
				"providerType": "k8s", "displayName": "a token of this hub, or of its provider", "apiUrl": "", "enabled": true,
				"organizationAssignment": jsonObject{"type": "static", "organizationName": organizationID},
				"roleAssignment":         jsonObject{"type": "static", "roles": []string{}},
			},
		}},
	})
	return nil
}

// authValidate says that who asks has signed in: all others are refused before.
func (f *flightctlServer) authValidate(w http.ResponseWriter, _ *http.Request) error {
	writeText(w, http.StatusOK, "")
	return nil
}

func (f *flightctlServer) userInfo(w http.ResponseWriter, r *http.Request) error {
	a := accessIn(r.Context())
	writeJSON(w, http.StatusOK, jsonObject{"preferred_username": a.user, "name": a.user, "sub": a.user, "organizations": []any{organizationObject()}})
	return nil
}

// permissions are what the user may do with flightctl's kinds.
func (f *flightctlServer) permissions(w http.ResponseWriter, r *http.Request) error {
	a, list := accessIn(r.Context()), []any{}
	for i := range f.server.Kinds {
		k := &f.server.Kinds[i]
		if k.dialect == nil || k.dialect.Root != flightctlRoot || k.Version != v1beta1 {
			continue
		}
		if may := slices.DeleteFunc(slices.Clone(verbs), func(verb string) bool { return !a.may(verb, k) }); len(may) > 0 {
			list = append(list, jsonObject{"resource": k.Plural, "operations": may})
		}
	}
	writeJSON(w, http.StatusOK, jsonObject{"permissions": list})
	return nil
}

func (f *flightctlServer) flightctlVersion(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, jsonObject{"version": f.server.Version})
	return nil
}

func organizationObject() jsonObject {
	return jsonObject{
		"apiVersion": v1beta1, "kind": "Organization", "metadata": jsonObject{"name": organizationID},
		"spec": jsonObject{"displayName": "edgebus", "externalId": ""},
	}
}

func (f *flightctlServer) organizations(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, jsonObject{"apiVersion": v1beta1, "kind": "OrganizationList", "metadata": jsonObject{}, "items": []any{organizationObject()}})
	return nil
}

// enrollmentConfig is what the configuration of an agent has to say of this hub. With a name it has the certificate of that request, too.
func (f *flightctlServer) enrollmentConfig(w http.ResponseWriter, r *http.Request) error {
	a := accessIn(r.Context())
	switch {
	case f.server.Enrollment == nil:
		return statusErrorf(http.StatusNotFound, "NotFound", "this hub enrols no nodes")
	case !a.all:
		return statusErrorf(http.StatusForbidden, "Forbidden", "User %q cannot get path %q: it is for operators of all nodes", a.user, r.URL.Path)
	case r.TLS == nil:
		return statusErrorf(http.StatusConflict, "Conflict", "agents need HTTPS: ask at the address that they are to use (http.tls.listen)")
	}
	var cert []byte
	if name := r.URL.Query().Get("csr"); name != "" {
		er, err := objects.Get[resource.EnrollmentRequest](r.Context(), f.server.reads, store.Key{Name: name})
		if errors.Is(err, resource.NotFound) {
			return statusErrorf(http.StatusNotFound, "NotFound", "CertificateSigningRequest of name %q not found", name)
		}
		if err != nil {
			return err
		}
		if er.Spec.SignerName != resource.SignerEnroller || er.Status.Certificate == "" {
			return badRequest("", "the request %s has no certificate of an enroller: it is made with the signer flightctl.io/enrollment, and approved", name)
		}
		cert = []byte(er.Status.Certificate)
	}
	writeJSON(w, http.StatusOK, jsonObject{"enrollment-service": jsonObject{
		"authentication": jsonObject{"client-certificate-data": base64.StdEncoding.EncodeToString(cert), "client-key-data": ""},
		"service": jsonObject{
			"server": "https://" + r.Host, "certificate-authority-data": base64.StdEncoding.EncodeToString(f.server.Enrollment.Authorities()),
		},
		"enrollment-ui-endpoint": "https://" + r.Host,
	}})
	return nil
}

// labels are the labels that the user's nodes have, each once.
func (f *flightctlServer) labels(w http.ResponseWriter, r *http.Request) error {
	if kind := r.URL.Query().Get("kind"); kind != "Device" {
		return badRequest("", "kind: %.40q: labels are listed of kind Device", kind)
	}
	all := map[string]bool{}
	err := f.eachNode(r, func(n *resource.Node) {
		for key, value := range n.Metadata.Labels {
			all[key+"="+value] = true
		}
	})
	if err != nil {
		return err
	}
	list := make([]string, 0, len(all))
	for label := range all {
		list = append(list, label)
	}
	slices.Sort(list)
	writeJSON(w, http.StatusOK, list)
	return nil
}

// eachNode visits the nodes that a request selects, in the form of flightctl.
func (f *flightctlServer) eachNode(r *http.Request, visit func(*resource.Node)) error {
	req, err := f.server.parse(redirectRequest(r, http.MethodGet, flightctlRoot+"/devices", nil))
	if err != nil {
		return err
	}
	for _, name := range []string{"limit", "continue", "watch", "kind"} {
		req.Form.Del(name)
	}
	if err := req.authorize(); err != nil {
		return err
	}
	return f.server.lister.visitNodes(req, visit)
}

func (l *lister) visitNodes(r *request, visit func(*resource.Node)) error {
	sel, err := l.selector(r)
	if err != nil {
		return err
	}
	found, _, err := l.collect(r, store.ListOptions{}, sel)
	if err != nil {
		return err
	}
	for _, o := range found {
		n := new(resource.Node)
		if err := json.Unmarshal(o.Data, n); err != nil {
			return errUnreadable(o.Key)
		}
		if len(o.Status) > 0 && json.Unmarshal(o.Status, &n.Status) != nil {
			return errUnreadable(o.Key)
		}
		visit(n)
	}
	return nil
}

// wantsSummary reports whether a list is asked for how the devices are on the whole, and for none of them.
func (r *request) wantsSummary() bool {
	return r.ownPath && r.key.Kind == resource.KindNode && httpserver.IsQueryTrue(r.Form, "summaryOnly")
}

// summary serves a list without its items, but with a summary of them.
func (l *lister) summary(w http.ResponseWriter, r *request) error {
	var sum resource.FleetSummary
	if err := l.visitNodes(r, func(n *resource.Node) { sum.Add(n.Status.Summaries()) }); err != nil {
		return err
	}
	counts := func(of map[string]int) map[string]int {
		if of == nil {
			return map[string]int{}
		}
		return of
	}
	writeJSON(w, http.StatusOK, struct {
		listHead
		Items   []any      `json:"items"`
		Summary jsonObject `json:"summary"`
	}{r.kind.listHead(listMeta{}), []any{}, jsonObject{
		"total": sum.Nodes, "summaryStatus": counts(sum.SummaryStatus), "updateStatus": counts(sum.UpdateStatus), "applicationStatus": counts(sum.ApplicationStatus),
	}})
	return nil
}

// lastSeen says when the hub last heard of a device; 204: never.
func (f *flightctlServer) lastSeen(w http.ResponseWriter, r *http.Request) error {
	a, name := accessIn(r.Context()), r.PathValue("name")
	if !a.reads || !a.hasNode(name) {
		return statusErrorf(http.StatusForbidden, "Forbidden", "nodes.edgebus.io %q is forbidden: User %q cannot get resource \"devices/lastseen\": %s", name, a.user, a.rule)
	}
	n, err := objects.Get[resource.Node](r.Context(), f.server.reads, store.Key{Name: name})
	if errors.Is(err, resource.NotFound) {
		return statusErrorf(http.StatusNotFound, "NotFound", "Device of name %q not found", name)
	}
	if err != nil {
		return err
	}
	if n.Status.LastSeen == "" {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	writeJSON(w, http.StatusOK, jsonObject{"lastSeen": n.Status.LastSeen})
	return nil
}

// flightctlFields are the field selectors that flightctl has for its kinds. Most values follow from others.
func flightctlFields(kind string) map[string]func(any) string {
	node := func(get func(*resource.Node) string) func(any) string { return typedField(get) }
	switch kind {
	case resource.KindNode:
		return map[string]func(any) string{
			"metadata.alias":                    node(func(n *resource.Node) string { return n.Metadata.Labels["alias"] }),
			"metadata.creationTimestamp":        node(func(n *resource.Node) string { return creationTime(n.Metadata) }),
			"status.summary.status":             node(func(n *resource.Node) string { return n.Status.Summary().Status }),
			"status.updated.status":             node(func(n *resource.Node) string { return n.Status.Updated().Status }),
			"status.applicationsSummary.status": node(func(n *resource.Node) string { return n.Status.ApplicationsSummary().Status }),
			"status.lifecycle.status":           node(func(n *resource.Node) string { return n.Status.Lifecycle().Status }),
			"status.lastSeen":                   node(func(n *resource.Node) string { return n.Status.LastSeen }),
		}
	case resource.KindFleet:
		return map[string]func(any) string{
			"metadata.owner":             typedField(func(f *resource.Fleet) string { return f.Metadata.Owner }),
			"metadata.creationTimestamp": typedField(func(f *resource.Fleet) string { return creationTime(f.Metadata) }),
		}
	case resource.KindRepository:
		return map[string]func(any) string{
			"spec.type": typedField(func(r *resource.Repository) string { return r.Spec.Type }),
			"spec.url":  typedField(func(r *resource.Repository) string { return r.Spec.URL }),
		}
	case resource.KindResourceSync:
		return map[string]func(any) string{"spec.repository": typedField(func(r *resource.ResourceSync) string { return r.Spec.Repository })}
	case resource.KindEnrollmentRequest:
		return map[string]func(any) string{
			"status.approval.approved": typedField(func(e *resource.EnrollmentRequest) string {
				return strconv.FormatBool(e.Spec.Approval == resource.Approved)
			}),
		}
	}
	return nil
}

func creationTime(m resource.Meta) string {
	if m.CreationTimestamp == nil {
		return ""
	}
	return resource.FormatTime(*m.CreationTimestamp)
}

// renews reports whether a user is a node that may request the renewal of its certificate, and read its requests.
func (a access) renews(k *Kind) bool {
	return a.role == string(topics.RoleNode) && k.storeKind() == resource.KindEnrollmentRequest
}
