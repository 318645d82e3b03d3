package api

import (
	"encoding/base64"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
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
	require.Equal(t, nodeCSR, h.ok("GET", base+"/enrollmentrequests/n7", "").str("spec.csr"))
	encoded := base64.StdEncoding.EncodeToString([]byte(nodeCSR))
	require.Equal(t, encoded, h.ok("GET", "/api/v1/certificatesigningrequests/n7", "").str("spec.request"))

	h.ok("PUT", "/api/v1/enrollmentrequests/n7/approval", `{"approved":true,"labels":{"site":"hall"}}`, "Content-Type", "application/json")
	approved := h.ok("GET", base+"/enrollmentrequests/n7", "")
	require.Equal(t, "Approved", approved.str("spec.approval"))
	require.Equal(t, "hall", approved.str("spec.labels.site"))
	require.Equal(t, 422, h.do("PUT", "/api/v1/enrollmentrequests/n7/approval", `{"approved":false}`, "Content-Type", "application/json").code, "a decision is not taken back")
	require.Equal(t, 404, h.do("PUT", "/api/v1/enrollmentrequests/n8/approval", `{"approved":true}`, "Content-Type", "application/json").code)

	other := base64.StdEncoding.EncodeToString([]byte("rubbish"))
	require.Equal(t, 422, h.do("POST", "/api/v1/certificatesigningrequests", `{"metadata":{"name":"n9"},"spec":{"request":"`+other+`","signerName":"flightctl.io/enrollment"}}`).code)
}
