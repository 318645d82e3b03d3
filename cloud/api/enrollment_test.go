// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

const nodeCSR = `-----BEGIN CERTIFICATE REQUEST-----
MIHHMG8CAQAwDTELMAkGA1UEAwwCbjcwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AAT6HwqMeqt8gh9Rf0frEqEtpN29PITPfDh1J+Nk+zDMfKT4pBqeoo1MlncCNMHH
lqziRStmT/4zeoHC9m9iVS73oAAwCgYIKoZIzj0EAwIDSAAwRQIhAKV1tXnkccXx
gKEqyYNdmJFGLNGctlHuzhh+kl6KTdzkAiB7P6NNBBp9ud5MHs03AhqMjWa/8Nl3
qjZp1AXqE3FzWA==
-----END CERTIFICATE REQUEST-----
`

// flightctl's clients make and approve requests on its own paths; they are the same objects as ours.
func TestFlightctlsEnrollment(t *testing.T) {
	h := newHub(t, asUser)
	quoted, err := json.Marshal(nodeCSR)
	require.NoError(t, err)
	h.ok("POST", "/api/v1/enrollmentrequests", `{"apiVersion":"flightctl.io/v1alpha1","kind":"EnrollmentRequest","metadata":{"name":"n7"},"spec":{"csr":`+string(quoted)+`,"labels":{"a":"b"}}}`)
	require.Equal(t, nodeCSR, h.ok("GET", apiRoot+"/enrollmentrequests/n7", "").str("spec.csr"))
	encoded := base64.StdEncoding.EncodeToString([]byte(nodeCSR))
	require.Equal(t, encoded, h.ok("GET", "/api/v1/certificatesigningrequests/n7", "").str("spec.request"))

	h.ok("PUT", "/api/v1/enrollmentrequests/n7/approval", `{"approved":true,"labels":{"site":"hall"}}`, "Content-Type", "application/json")
	approved := h.ok("GET", apiRoot+"/enrollmentrequests/n7", "")
	require.Equal(t, "Approved", approved.str("spec.approval"))
	require.Equal(t, "hall", approved.str("spec.labels.site"))
	require.Equal(t, 422, h.do("PUT", "/api/v1/enrollmentrequests/n7/approval", `{"approved":false}`, "Content-Type", "application/json").code, "a decision is not taken back")
	require.Equal(t, 404, h.do("PUT", "/api/v1/enrollmentrequests/n8/approval", `{"approved":true}`, "Content-Type", "application/json").code)

	other := base64.StdEncoding.EncodeToString([]byte("rubbish"))
	require.Equal(t, 422, h.do("POST", "/api/v1/certificatesigningrequests", `{"metadata":{"name":"n9"},"spec":{"request":"`+other+`","signerName":"flightctl.io/enrollment"}}`).code)
}

// The key of an image may ask that the image's hosts become nodes, see what was decided, and do nothing else.
func TestAnEnrollerAsksAndDoesNothingElse(t *testing.T) {
	var waiting []string
	full := false
	h := newHub(t, func(o *hubOptions) {
		o.Authenticate = authenticateByHeader
		o.Enrollment = fakeEnrollment{count: func(name string) (func(), error) {
			if full {
				return nil, resource.Errorf(resource.Quota, "", "too many nodes wait for approval")
			}
			waiting = append(waiting, name)
			return func() { waiting = waiting[:len(waiting)-1] }, nil
		}}
	})
	quoted, err := json.Marshal(nodeCSR)
	require.NoError(t, err)
	ask := func(name, more string) string {
		return `{"kind":"EnrollmentRequest","metadata":{"name":"` + name + `","annotations":{"edgebus.io/enroller":"boss"}},"spec":{"csr":` + string(quoted) + `,"labels":{"site":"hall"}` + more + `}}`
	}
	img, requests := []string{"As", "img"}, "/api/v1/enrollmentrequests"
	h.ok("POST", requests, ask("n7", ""), img...)
	notes := h.ok("GET", apiRoot+"/enrollmentrequests/n7", "", img...).at("metadata.annotations").(map[string]any)
	require.Equal(t, "img", notes["edgebus.io/enroller"])
	require.Equal(t, `{"site":"hall"}`, notes["edgebus.io/asked-labels"], "as a node's own labels over MQTT")
	require.NotEmpty(t, notes["edgebus.io/remote"])
	require.Equal(t, "n7", h.ok("GET", requests+"/n7", "", img...).str("metadata.name"))
	require.Equal(t, []string{"n7"}, waiting)

	require.Equal(t, 403, h.do("GET", requests+"/n7", "", "As", "img2").code, "another image's")
	h.ok("POST", apiRoot+"/enrollmentrequests", `{"metadata":{"name":"n7-boss"},"spec":{"nodeName":"n7","csr":`+string(quoted)+`}}`, "As", "boss")
	require.Equal(t, 403, h.do("GET", requests+"/n7-boss", "", img...).code)
	require.Equal(t, 409, h.do("POST", requests, ask("n7", ""), img...).code)
	require.Equal(t, 422, h.do("POST", requests, ask("n8", ""), img...).code, "the CSR is n7's")
	require.Equal(t, 403, h.do("POST", apiRoot+"/enrollmentrequests", ask("n7-b", `,"nodeName":"n7","approval":"Approved"`), img...).code)
	require.Equal(t, 403, h.do("POST", apiRoot+"/enrollmentrequests", ask("n7-b", `,"nodeName":"n7","replace":true`), img...).code)
	require.Equal(t, 413, h.do("POST", requests, ask("n7-c", `,"nodeName":"n7","systemInfo":{"kernel":"`+strings.Repeat("x", 20_000)+`"}`), img...).code)
	require.Equal(t, []string{"n7"}, waiting, "what was refused waits for nobody")
	full = true
	require.Equal(t, 429, h.do("POST", apiRoot+"/enrollmentrequests", ask("n7-d", `,"nodeName":"n7"`), img...).code)
	for _, c := range [][3]string{
		{"GET", requests},
		{"PUT", requests + "/n7/approval", `{"approved":true}`},
		{"DELETE", requests + "/n7"},
		{"PATCH", apiRoot + "/enrollmentrequests/n7", `{"spec":{"approval":"Approved"}}`},
		{"PUT", apiRoot + "/enrollmentrequests/n7", ask("n7", "")},
		{"GET", apiRoot + "/enrollmentrequests?watch=1"},
		{"GET", apiRoot + "/devices"},
		{"GET", apiRoot + "/nodes"},
		{"GET", "/api/v1/secrets"},
		{"GET", "/api/v1/devices/n7"},
		{"POST", apiRoot + "/nodes", `{"metadata":{"name":"n7"},"spec":{}}`},
		{"GET", "/api/v1/events"},
	} {
		require.Equal(t, 403, h.do(c[0], c[1], c[2], img...).code, c)
	}
}

// flightctl's agent and CLI leave the group of apiVersion out. A pending request has a list of conditions, which is all that tells the agent
// that it was answered; a decided one says what was decided.
func TestFlightctlsClientsLeaveTheGroupOut(t *testing.T) {
	h := newHub(t, asUser)
	quoted, err := json.Marshal(nodeCSR)
	require.NoError(t, err)
	made := h.ok("POST", "/api/v1/enrollmentrequests", `{"apiVersion":"v1beta1","kind":"EnrollmentRequest","metadata":{"name":"n7"},"spec":{"csr":`+string(quoted)+`}}`)
	require.Contains(t, string(made.body), `"conditions":[]`)
	require.Equal(t, "flightctl.io/v1beta1", made.str("apiVersion"))
	h.ok("PUT", "/api/v1/enrollmentrequests/n7/approval", `{"approved":true,"labels":{"site":"hall"}}`, "Content-Type", "application/json")
	decided := h.ok("GET", "/api/v1/enrollmentrequests/n7", "")
	require.Contains(t, string(decided.body), `"approval":{"approved":true`)
	require.Equal(t, "hall", decided.str("status.approval.labels.site"))

	for _, version := range []string{"v1alpha1", "v1beta1", "flightctl.io/v1beta1", "api.flightctl.io/v1beta1"} {
		h.ok("PUT", "/api/v1/devices/d1", `{"apiVersion":"`+version+`","kind":"Device","metadata":{"name":"d1"},"spec":{"os":{"image":"os:1"}}}`)
		h.ok("PUT", "/apis/flightctl.io/v1beta1/devices/d1", `{"apiVersion":"v1beta1","kind":"Device","metadata":{"name":"d1"},"spec":{"os":{"image":"os:1"}}}`)
	}
	for _, version := range []string{"v1", "v2", "other.io/v1beta1", "edgebus.io/v1alpha1"} {
		require.Equal(t, 400, h.do("PUT", "/api/v1/devices/d1", `{"apiVersion":"`+version+`","kind":"Device","metadata":{"name":"d1"},"spec":{}}`).code, version)
	}
	require.Equal(t, 400, h.do("POST", apiRoot+"/nodes", `{"apiVersion":"v1alpha1","kind":"Node","metadata":{"name":"x"}}`).code, "which is no form of flightctl's")
}

// PUT at flightctl's own paths creates what isn't there, as its CLI's apply expects, and nowhere else.
func TestFlightctlsPutCreates(t *testing.T) {
	h := newHubWithUsers(t)
	body := func(name string) string {
		return `{"apiVersion":"v1beta1","kind":"Fleet","metadata":{"name":"` + name + `"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"spec":{}}}}`
	}
	as := []string{"As", "boss", "Content-Type", "application/json"}
	require.Equal(t, 201, h.do("PUT", "/api/v1/fleets/f1", body("f1"), as...).code)
	require.Equal(t, 200, h.do("PUT", "/api/v1/fleets/f1", body("f1"), as...).code)
	require.Equal(t, 400, h.do("PUT", "/api/v1/fleets/f2", body("f3"), as...).code, "the path names it otherwise")
	require.Equal(t, 404, h.do("GET", "/api/v1/fleets/f2", "", as...).code)
	require.Equal(t, 404, h.do("PUT", "/apis/flightctl.io/v1beta1/fleets/f2", body("f2"), as...).code)
	require.Equal(t, 404, h.do("PUT", "/api/v1/devices/joe/status", `{"apiVersion":"v1beta1","kind":"Device","metadata":{"name":"joe"},"status":{}}`, "As", "joe").code, "a status creates nothing")
	require.Equal(t, 403, h.do("PUT", "/api/v1/fleets/f2", body("f2"), "As", "vic").code)
	require.Equal(t, 403, h.do("PUT", "/api/v1/devices/n9", `{"apiVersion":"v1beta1","kind":"Device","metadata":{"name":"n9"},"spec":{}}`, "As", "ann").code, "another's node")
}
