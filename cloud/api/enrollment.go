// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// enrollmentServer serves what is decided about hosts: whether they become nodes, and whether they are nodes no more.
type enrollmentServer struct{ server *server }

// Enrollment is what the API has to know of how nodes enrol. cloud/enroll has it.
type Enrollment interface {
	// ServeHTTP serves what is below /enroll/: invitations, the authority, revocation.
	ServeHTTP(w http.ResponseWriter, r *http.Request, id broker.Identity) error
	// CountRequest counts an EnrollmentRequest that a user with the role enroller makes, or says why it may not be made; settled takes it back.
	CountRequest(name, remote string) (settled func(), err error)
	// Decommission takes a node's certificates no more, for good.
	Decommission(node, by string) error
	// Settle carries out the decision about an EnrollmentRequest that was just written.
	Settle(ctx context.Context, name string) error
	// CheckRenewal returns what a request of a node for the renewal of its certificate notes, or says why it gets none.
	CheckRenewal(id broker.Identity) (after string, err error)
	// Decommissioned reports whether a node is refused with a certificate because it was decommissioned.
	Decommissioned(node string, cert *x509.Certificate) bool
	// GaveUp notes that a decommissioned node has said that it gives up its keys.
	GaveUp(node string)
	// Authorities are the certificates of the hub's authorities, in PEM.
	Authorities() []byte
}

// approve serves the approval of an EnrollmentRequest as flightctl's clients send it: {"approved": true, "labels": {…}}, to which replace can be added. It is
// a merge patch of the request's spec.
func (n *enrollmentServer) approve(w http.ResponseWriter, r *http.Request) error {
	var decision struct {
		Approved bool              `json:"approved"`
		Labels   map[string]string `json:"labels"`
		Replace  bool              `json:"replace"`
	}
	raw, err := readBody(r, mediaType(r))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &decision); err != nil {
		return badRequest("", "the approval can't be read: %v", err)
	}
	spec := map[string]any{"approval": resource.Denied}
	if decision.Approved {
		spec["approval"] = resource.Approved
	}
	if decision.Replace {
		spec["replace"] = true
	}
	if len(decision.Labels) > 0 {
		spec["labels"] = decision.Labels
	}
	return n.decide(w, r, spec, "/apis/"+resource.APIVersion+"/enrollmentrequests/"+r.PathValue("name"))
}

// approveSigning serves the decision about a CertificateSigningRequest as flightctl's clients send it: the whole object, whose conditions say
// what was decided.
func (n *enrollmentServer) approveSigning(w http.ResponseWriter, r *http.Request) error {
	var asked struct {
		Status struct {
			Conditions []resource.Condition `json:"conditions"`
		} `json:"status"`
	}
	raw, err := readBody(r, mediaType(r))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &asked); err != nil {
		return badRequest("", "the CertificateSigningRequest can't be read: %v", err)
	}
	decision := ""
	for _, c := range asked.Status.Conditions {
		if c.Status == "True" && (c.Type == resource.Approved || c.Type == resource.Denied) {
			if decision != "" {
				return badRequest("status.conditions", "a request is either Approved or Denied")
			}
			decision = c.Type
		}
	}
	if decision == "" {
		return badRequest("status.conditions", "must have Approved or Denied with the status True")
	}
	return n.decide(w, r, jsonObject{"approval": decision}, flightctlRoot+"/certificatesigningrequests/"+r.PathValue("name"))
}

// decide writes a decision into the spec of an EnrollmentRequest, has it carried out, and answers with what is at a path then.
func (n *enrollmentServer) decide(w http.ResponseWriter, r *http.Request, spec jsonObject, show string) error {
	patch, err := json.Marshal(jsonObject{"spec": spec})
	if err != nil {
		return err
	}
	name := r.PathValue("name")
	if err := n.server.object(discardWriter{http.Header{}}, redirectRequest(r, http.MethodPatch, "/apis/"+resource.APIVersion+"/enrollmentrequests/"+name, patch)); err != nil {
		return err
	}
	if n.server.Enrollment != nil { // at once, so that who made the decision finds the certificate
		if err := n.server.Enrollment.Settle(r.Context(), name); err != nil {
			return err
		}
	}
	return n.server.object(w, redirectRequest(r, http.MethodGet, show, nil))
}

// discardWriter is the answer to a part of a request.
type discardWriter struct{ header http.Header }

func (d discardWriter) Header() http.Header       { return d.header }
func (discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (discardWriter) WriteHeader(int)             {}

// decommission ends a node's part in the bus: its certificates are taken no more, and its Node is deleted. It may be asked
// again, also when the Node is gone.
func (n *enrollmentServer) decommission(w http.ResponseWriter, r *http.Request) error {
	id, node := accessIn(r.Context()).id, r.PathValue("name")
	if !id.AllNodes() {
		return resource.Errorf(resource.Forbidden, "", "this is for operators of all nodes")
	}
	if err := n.server.Enrollment.Decommission(node, id.User); err != nil {
		return err
	}
	return n.afterDecommission(w, redirectRequest(r, http.MethodDelete, "/apis/"+resource.APIVersion+"/nodes/"+node, nil))
}

// afterDecommission serves what is done with the Node of a decommissioned node, if there is one.
func (n *enrollmentServer) afterDecommission(w http.ResponseWriter, as *http.Request) error {
	err := n.server.object(w, as)
	if errors.Is(err, resource.NotFound) {
		writeJSON(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
		return nil
	}
	return err
}

// unenroll serves the decommissioning of a Device as flightctl's clients ask for it: {"target": "Unenroll"}. The Device stays until it is
// deleted, without labels, so that it leaves its fleet.
func (n *enrollmentServer) unenroll(w http.ResponseWriter, r *http.Request) error {
	id, node := accessIn(r.Context()).id, r.PathValue("name")
	if !id.AllNodes() {
		return resource.Errorf(resource.Forbidden, "", "this is for operators of all nodes")
	}
	var body struct {
		Target string `json:"target"`
	}
	raw, err := readBody(r, mediaType(r))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		return badRequest("", "the body can't be read: %v", err)
	}
	if body.Target != "Unenroll" {
		return badRequest("", "target: %.40q: must be Unenroll: the node forgets its keys; nothing else of the host is erased", body.Target)
	}
	if err := n.server.Enrollment.Decommission(node, id.User); err != nil {
		return err
	}
	const unlabelled = `{"metadata": {"labels": null}}`
	return n.afterDecommission(w, redirectRequest(r, http.MethodPatch, "/api/v1/devices/"+node, []byte(unlabelled)))
}

// The condition by which flightctl's agent says that it is about to forget its keys.
const conditionDecommissioning, reasonCompleted = "DeviceDecommissioning", "Completed"

// tellDecommissioned answers a node that speaks HTTP only, and that was decommissioned: with its certificate, which is good for nothing else
// any more, it is told so where it asks for its spec, and says there that it gives up its keys. It reports whether it has answered.
func (n *enrollmentServer) tellDecommissioned(w http.ResponseWriter, r *http.Request) bool {
	if n.server.Enrollment == nil || r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return false
	}
	cert := r.TLS.PeerCertificates[0]
	node := cert.Subject.CommonName
	at, ours := strings.CutPrefix(r.URL.Path, flightctlRoot+"/devices/"+node+"/")
	asks := ours && at == "rendered" && r.Method == http.MethodGet
	says := ours && at == "status" && (r.Method == http.MethodPut || r.Method == http.MethodPatch)
	if !asks && !says || !n.server.Enrollment.Decommissioned(node, cert) || n.server.Now().After(cert.NotAfter) {
		return false
	}
	w.Header().Set(apiVersionHeader, v1beta1)
	meta, spec := jsonObject{"name": node}, jsonObject{}
	if asks {
		known, _ := strconv.ParseInt(r.URL.Query().Get("knownRenderedVersion"), 10, 64) // none is as good as 0
		version := strconv.FormatInt(known+1, 10)
		meta["annotations"] = jsonObject{"device-controller/renderedVersion": version, "renderedVersion": version}
		spec["decommissioning"] = jsonObject{"target": "Unenroll"}
	} else {
		raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, n.server.MaxBody))
		var said any
		if err == nil && json.Unmarshal(raw, &said) == nil && saysKeysGivenUp(said) {
			n.server.Enrollment.GaveUp(node)
		}
	}
	writeJSON(w, http.StatusOK, jsonObject{"apiVersion": "flightctl.io/" + v1beta1, "kind": "Device", "metadata": meta, "spec": spec})
	return true
}

// saysKeysGivenUp reports whether a status, or a patch of one, has the condition that the agent has done what it does before it forgets its keys.
func saysKeysGivenUp(v any) bool {
	switch v := v.(type) {
	case jsonObject:
		if v["type"] == conditionDecommissioning && v["status"] == "True" && v["reason"] == reasonCompleted {
			return true
		}
		for _, e := range v {
			if saysKeysGivenUp(e) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, saysKeysGivenUp)
	}
	return false
}
