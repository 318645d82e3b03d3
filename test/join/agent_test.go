// SPDX-License-Identifier: Apache-2.0

package join

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// httpsAgent is a host that speaks HTTPS only, as flightctl's agent does, with a certificate or with none.
type httpsAgent struct {
	t    *testing.T
	hub  *joinHub
	http *http.Client
}

func (h *joinHub) agent(t *testing.T, key *ecdsa.PrivateKey, cert []byte) httpsAgent {
	t.Helper()
	var authorities []struct{ Certificate string }
	h.get("/enroll/authority", &authorities)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM([]byte(authorities[0].Certificate)))
	config := &tls.Config{RootCAs: pool, ServerName: "localhost"}
	if key != nil {
		block, _ := pem.Decode(cert)
		require.NotNil(t, block, "%s", cert)
		config.Certificates = []tls.Certificate{{Certificate: [][]byte{block.Bytes}, PrivateKey: key}}
	}
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	return httpsAgent{t, h, &http.Client{Transport: transport, Timeout: 20 * time.Second}}
}

func (h *joinHub) get(path string, into any) int {
	h.t.Helper()
	r, err := http.Get(h.api + path)
	require.NoError(h.t, err)
	defer r.Body.Close()
	require.NoError(h.t, json.NewDecoder(r.Body).Decode(into))
	return r.StatusCode
}

// send is a request to flightctl's paths.
func (a httpsAgent) send(method, path string, body any) (code int, answer map[string]any) {
	a.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(a.t, err)
	req, err := http.NewRequest(method, "https://"+a.hub.https+"/api/v1/"+path, bytes.NewReader(text))
	require.NoError(a.t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Flightctl-API-Version", "v1beta1")
	r, err := a.http.Do(req)
	require.NoError(a.t, err)
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	require.NoError(a.t, err)
	_ = json.Unmarshal(raw, &answer) // there may be none
	return r.StatusCode, answer
}

// operator writes at flightctl's paths, over loopback.
func (h *joinHub) operator(method, path string, body any) (code int, answer map[string]any) {
	h.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(h.t, err)
	req, err := http.NewRequest(method, h.api+"/api/v1/"+path, bytes.NewReader(text))
	require.NoError(h.t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Flightctl-API-Version", "v1beta1")
	r, err := http.DefaultClient.Do(req)
	require.NoError(h.t, err)
	defer r.Body.Close()
	require.NoError(h.t, json.NewDecoder(r.Body).Decode(&answer))
	return r.StatusCode, answer
}

func signingRequest(name, signer, csr string) map[string]any {
	return map[string]any{
		"apiVersion": "v1beta1", "kind": "CertificateSigningRequest", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"signerName": signer, "request": base64.StdEncoding.EncodeToString([]byte(csr)), "usages": []string{"clientAuth", "CA:false"}},
	}
}

func fieldAt(answer map[string]any, path ...string) any {
	var v any = answer
	for _, name := range path {
		fields, _ := v.(map[string]any)
		v = fields[name]
	}
	return v
}

// issuedCertificate is that of a CertificateSigningRequest.
func issuedCertificate(t *testing.T, answer map[string]any) []byte {
	t.Helper()
	text, _ := fieldAt(answer, "status", "certificate").(string)
	cert, err := base64.StdEncoding.DecodeString(text)
	require.NoError(t, err)
	require.NotEmpty(t, cert, "%v", answer)
	return cert
}

// enrolOverHTTPS has a host join by a request that is approved, with the certificate of an image.
func (h *joinHub) enrolOverHTTPS(t *testing.T, image httpsAgent, node string) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, csr := joinRequest(t, node)
	code, _ := image.send("POST", "enrollmentrequests", map[string]any{
		"apiVersion": "v1beta1", "kind": "EnrollmentRequest", "metadata": map[string]any{"name": node}, "spec": map[string]any{"csr": csr},
	})
	require.Equal(t, 201, code)
	code, _ = h.operator("PUT", "enrollmentrequests/"+node+"/approval", map[string]any{"approved": true})
	require.Equal(t, 200, code)
	code, answer := image.send("GET", "enrollmentrequests/"+node, nil)
	require.Equal(t, 200, code)
	cert, _ := fieldAt(answer, "status", "certificate").(string)
	require.NotEmpty(t, cert, "who approves finds it carried out")
	return key, []byte(cert)
}

// image is a host with a certificate that is in an image, and is good for asking to join alone.
func (h *joinHub) image(t *testing.T) httpsAgent {
	t.Helper()
	key, csr := joinRequest(t, "client-enrollment-1")
	code, answer := h.operator("POST", "certificatesigningrequests", signingRequest("client-enrollment-1", "flightctl.io/enrollment", csr))
	require.Equal(t, 201, code, "%v", answer)
	return h.agent(t, key, issuedCertificate(t, answer))
}

func TestAnImagesCertificateAsksToJoinAndDoesNothingElse(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	image := h.image(t)
	key, cert := h.enrolOverHTTPS(t, image, "n1")
	for _, path := range []string{"devices", "devices/n1", "devices/n1/rendered", "enrollmentrequests", "certificatesigningrequests", "certificatesigningrequests/client-enrollment-1"} {
		code, _ := image.send("GET", path, nil)
		require.Equal(t, 403, code, path)
	}
	_, csr := joinRequest(t, "n1")
	code, _ := image.send("POST", "certificatesigningrequests", signingRequest("n1", "flightctl.io/device-management-renewal", csr))
	require.Equal(t, 403, code, "it renews nothing")
	_, csr = joinRequest(t, "client-enrollment-2")
	code, _ = image.send("POST", "certificatesigningrequests", signingRequest("client-enrollment-2", "flightctl.io/enrollment", csr))
	require.Equal(t, 403, code, "and makes no others like it")

	code, _ = h.operator("DELETE", "certificatesigningrequests/client-enrollment-1", nil)
	require.Equal(t, 200, code)
	code, answer := image.send("GET", "enrollmentrequests/n1", nil)
	require.Equal(t, 401, code, "with the request its certificate is deleted")
	require.Contains(t, fmt.Sprint(answer["message"]), "was deleted")
	code, _ = h.agent(t, key, cert).send("GET", "devices/n1/rendered", nil)
	require.Equal(t, 200, code, "and the nodes that joined by it stay")
}

func TestANodeRenewsItsCertificateOverHTTPS(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	image := h.image(t)
	key, cert := h.enrolOverHTTPS(t, image, "n1")
	n1 := h.agent(t, key, cert)
	renewal := func(by httpsAgent, name, of string) (*ecdsa.PrivateKey, int, map[string]any) {
		key, csr := joinRequest(t, of)
		code, answer := by.send("POST", "certificatesigningrequests", signingRequest(name, "flightctl.io/device-management-renewal", csr))
		return key, code, answer
	}
	next, code, _ := renewal(n1, "n1-a", "n1")
	require.Equal(t, 201, code)
	code, answer := n1.send("GET", "certificatesigningrequests/n1-a", nil)
	require.Equal(t, 200, code)
	require.Equal(t, "flightctl.io/device-management-renewal", fieldAt(answer, "spec", "signerName"))
	conditions := fieldAt(answer, "status", "conditions").([]any)
	require.Equal(t, "Approved", fieldAt(conditions[0].(map[string]any), "type"))
	renewed := h.agent(t, next, issuedCertificate(t, answer))
	code, _ = renewed.send("GET", "devices/n1/rendered", nil)
	require.Equal(t, 200, code)
	_, code, _ = renewal(renewed, "n1-b", "n1")
	require.Equal(t, 201, code, "and that one is renewed as well")
	code, _ = renewed.send("GET", "certificatesigningrequests/n1-a", nil)
	require.Equal(t, 404, code, "of a node's renewals the last is kept")

	_, code, _ = renewal(n1, "n2-a", "n2")
	require.Equal(t, 422, code, "another's name")
	_, csr := joinRequest(t, "n1")
	code, _ = n1.send("POST", "certificatesigningrequests", signingRequest("n1-c", "flightctl.io/enrollment", csr))
	require.Equal(t, 403, code, "another's right")
	code, _ = n1.send("POST", "certificatesigningrequests", signingRequest("n1-d", "", csr))
	require.Equal(t, 403, code, "a node joins no other")
	key2, cert2 := h.enrolOverHTTPS(t, image, "n2")
	code, _ = h.agent(t, key2, cert2).send("GET", "certificatesigningrequests/n1-b", nil)
	require.Equal(t, 403, code, "another's request")
	code, _ = h.operator("POST", "certificatesigningrequests", signingRequest("n1-e", "flightctl.io/device-management-renewal", csr))
	require.Equal(t, 403, code, "and nobody renews for a node")

	require.Equal(t, 200, h.post("/enroll/nodes/n1/revoke", nil, nil))
	_, code, _ = renewal(renewed, "n1-f", "n1")
	require.Equal(t, 401, code, "what was revoked is not renewed")
}

// A node that speaks HTTPS only is told where it asks for its spec, with the certificate that is good for nothing else any more. That a request
// was refused is nothing that it was told.
func TestANodeOverHTTPSIsToldThatItWasDecommissioned(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	image := h.image(t)
	key, cert := h.enrolOverHTTPS(t, image, "n1")
	n1 := h.agent(t, key, cert)
	code, _ := n1.send("GET", "devices/n1/rendered?knownRenderedVersion=7", nil)
	require.Equal(t, 200, code)
	lifecycle := func() any {
		code, answer := h.operator("GET", "devices/n1", nil)
		require.Equal(t, 200, code)
		return fieldAt(answer, "status", "lifecycle", "status")
	}
	code, _ = h.operator("PUT", "devices/n1/decommission", map[string]any{"target": "Unenroll"})
	require.Equal(t, 200, code)
	for _, path := range []string{"devices/n1", "devices/n2/rendered", "devices", "events"} {
		code, _ := n1.send("GET", path, nil)
		require.Equal(t, 401, code, path)
	}
	_, csr := joinRequest(t, "n1")
	code, _ = n1.send("POST", "certificatesigningrequests", signingRequest("n1-a", "flightctl.io/device-management-renewal", csr))
	require.Equal(t, 401, code)
	code, _ = image.send("GET", "devices/n1/rendered", nil)
	require.Equal(t, 403, code, "the notice is for the node alone")

	code, answer := n1.send("GET", "devices/n1/rendered?knownRenderedVersion=7", nil)
	require.Equal(t, 200, code)
	require.Equal(t, "Unenroll", fieldAt(answer, "spec", "decommissioning", "target"))
	require.Equal(t, "8", fieldAt(answer, "metadata", "annotations", "device-controller/renderedVersion"), "agents take what is newer")
	says := func(reason string) {
		code, _ := n1.send("PUT", "devices/n1/status", map[string]any{
			"apiVersion": "v1beta1", "kind": "Device", "metadata": map[string]any{"name": "n1"},
			"status": map[string]any{"conditions": []any{map[string]any{"type": "DeviceDecommissioning", "status": "True", "reason": reason}}},
		})
		require.Equal(t, 200, code)
	}
	says("Started")
	require.Equal(t, "Decommissioning", lifecycle())
	says("Completed")
	require.Eventually(t, func() bool { return lifecycle() == "Decommissioned" }, 20*time.Second, 20*time.Millisecond)

	code, _ = h.operator("DELETE", "enrollmentrequests/n1", nil)
	require.Equal(t, 200, code)
	key, cert = h.enrolOverHTTPS(t, image, "n1")
	code, answer = h.agent(t, key, cert).send("GET", "devices/n1/rendered", nil)
	require.Equal(t, 200, code)
	require.Nil(t, fieldAt(answer, "spec", "decommissioning"), "it has joined again")
	code, _ = n1.send("GET", "devices/n1/rendered", nil)
	require.Equal(t, 401, code, "the certificate that was revoked stays so")
}
