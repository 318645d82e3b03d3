// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// fakeEnrollment are requests that are decided about elsewhere.
type fakeEnrollment struct {
	count func(name string) (settled func(), err error)
}

func (f fakeEnrollment) CountRequest(name, _ string) (func(), error) {
	if f.count == nil {
		return func() {}, nil
	}
	return f.count(name)
}

func (fakeEnrollment) ServeHTTP(http.ResponseWriter, *http.Request, broker.Identity) error {
	return nil
}
func (fakeEnrollment) Decommission(string, string) error             { return nil }
func (fakeEnrollment) Settle(context.Context, string) error          { return nil }
func (fakeEnrollment) CheckRenewal(broker.Identity) (string, error)  { return "0", nil }
func (fakeEnrollment) Decommissioned(string, *x509.Certificate) bool { return false }
func (fakeEnrollment) GaveUp(string)                                 {}
func (fakeEnrollment) Authorities() []byte                           { return []byte("PEM") }

var (
	callsRow  = regexp.MustCompile("(?m)^\\| (`/[^|]+`) \\|(.*)\\|(.*)\\|$")
	callsPath = regexp.MustCompile("`(/[^`]+)`")
	callsVerb = regexp.MustCompile(`\b(GET|PUT|POST|PATCH|DELETE)\b`)
)

// flightctlCalls are the calls that docs/dialects.md says are served, and are not.
func flightctlCalls(t *testing.T) (served, others [][2]string) {
	text, err := os.ReadFile("../../docs/dialects.md")
	require.NoError(t, err)
	_, text2, found := strings.Cut(string(text), "## flightctl's API calls\n")
	require.True(t, found)
	section, _, _ := strings.Cut(text2, "\n## ")
	verbs := func(cell string) []string {
		said, _, _ := strings.Cut(cell, ":")
		return callsVerb.FindAllString(said, -1)
	}
	for _, row := range callsRow.FindAllStringSubmatch(section, -1) {
		for _, path := range callsPath.FindAllStringSubmatch(row[1], -1) {
			for _, verb := range verbs(row[2]) {
				served = append(served, [2]string{verb, path[1]})
			}
			for _, verb := range verbs(row[3]) {
				others = append(others, [2]string{verb, path[1]})
			}
		}
	}
	return served, others
}

// flightctlHub has an object for each of flightctl's paths.
func flightctlHub(t *testing.T) *hub {
	h := newHub(t, asUser, func(o *hubOptions) {
		o.Enrollment = fakeEnrollment{}
	})
	h.ok("POST", "/api/v1/devices", `{"apiVersion":"v1beta1","kind":"Device","metadata":{"name":"n7","labels":{"alias":"press","site":"hall"}},"spec":{}}`)
	h.ok("POST", "/api/v1/devices", `{"apiVersion":"v1beta1","kind":"Device","metadata":{"name":"n8"},"spec":{}}`)
	h.ok("POST", "/api/v1/fleets", `{"apiVersion":"v1beta1","kind":"Fleet","metadata":{"name":"n7"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"spec":{}}}}`)
	h.ok("POST", "/api/v1/repositories", `{"apiVersion":"v1beta1","kind":"Repository","metadata":{"name":"n7"},"spec":{"type":"git","url":"https://example.com/a.git"}}`)
	h.ok("POST", "/api/v1/resourcesyncs", `{"apiVersion":"v1beta1","kind":"ResourceSync","metadata":{"name":"n7"},"spec":{"repository":"n7","targetRevision":"main","path":"/a"}}`)
	h.ok("POST", "/api/v1/enrollmentrequests", fmt.Sprintf(`{"apiVersion":"v1beta1","kind":"EnrollmentRequest","metadata":{"name":"n7"},"spec":{"csr":%q}}`, nodeCSR))
	h.ok("POST", apiRoot+"/templateversions", `{"metadata":{"name":"n7"},"spec":{"fleet":"n7","template":{"spec":{}}}}`, "As", "controller")
	return h
}

// The documentation's list of flightctl's calls is what the router does.
func TestFlightctlsCallsAreServedAsDocumented(t *testing.T) {
	served, others := flightctlCalls(t)
	require.Len(t, append(append([][2]string{}, served...), others...), 79, "flightctl's OpenAPI document v1beta1 has so many")
	h := flightctlHub(t)
	ask := func(call [2]string) hubResponse {
		path := "/api/v1" + regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllString(call[1], "n7")
		if strings.HasPrefix(call[1], "/ws/") {
			path = strings.TrimPrefix(path, "/api/v1")
		}
		media := "application/json"
		if call[0] == "PATCH" {
			media = mergeType
		}
		if call[1] == "/labels" {
			path += "?kind=Device"
		}
		return h.do(call[0], path, map[bool]string{true: `{}`}[call[0] != "GET" && call[0] != "DELETE"], "Content-Type", media)
	}
	for _, call := range others {
		r := ask(call)
		require.Contains(t, []int{404, 405}, r.code, "%s: %s", call, r.body)
	}
	deletes := [][2]string{}
	for _, call := range served {
		if call[0] == "DELETE" {
			deletes = append(deletes, call)
			continue
		}
		r := ask(call)
		require.NotContains(t, []int{404, 405, 500, 501}, r.code, "%s: %s", call, r.body)
	}
	for _, call := range deletes {
		if call[1] == "/certificatesigningrequests/{name}" {
			h.ok("POST", "/api/v1/enrollmentrequests", fmt.Sprintf(`{"apiVersion":"v1beta1","kind":"EnrollmentRequest","metadata":{"name":"n7"},"spec":{"csr":%q}}`, nodeCSR))
		}
		r := ask(call)
		require.Equal(t, 200, r.code, "%s: %s", call, r.body)
		require.Equal(t, "Success", r.str("status"), "which its clients read as a string")
	}
}

// flightctl's clients sign in with a token, and are told so before they have one.
func TestFlightctlsLoginIsToldOfTokens(t *testing.T) {
	h := newHub(t, func(o *hubOptions) { o.Authenticate = authenticateByHeader })
	config := h.ok("GET", "/api/v1/auth/config", "")
	require.Equal(t, "k8s", config.str("providers.0.spec.providerType"), "of all its types the one that needs a token")
	require.Equal(t, 401, h.do("GET", "/api/v1/auth/validate", "").code)
	require.Equal(t, 200, h.do("GET", "/api/v1/auth/validate", "", "As", "vic").code)
	require.Equal(t, "vic", h.ok("GET", "/api/v1/auth/userinfo", "", "As", "vic").str("preferred_username"))
	require.Equal(t, "00000000-0000-0000-0000-000000000000", h.ok("GET", "/api/v1/organizations", "", "As", "vic").str("items.0.metadata.name"))
	require.NotEmpty(t, h.ok("GET", "/api/v1/version", "", "As", "vic").str("version"))
	may := string(h.ok("GET", "/api/v1/auth/permissions", "", "As", "vic").body)
	require.Contains(t, may, `{"operations":["get","list","watch"],"resource":"devices"}`)
	require.NotContains(t, may, "repositories", "which a viewer may not read")
}

// The clients print the summary of a list without looking whether there is one.
func TestFlightctlsListHasASummary(t *testing.T) {
	h := flightctlHub(t)
	none := h.ok("GET", "/api/v1/devices?summaryOnly=true&labelSelector=site%3Dnowhere", "")
	require.Contains(t, string(none.body), `"summaryStatus":{}`)
	require.Equal(t, "DeviceList", none.str("kind"))
	sum := h.ok("GET", "/api/v1/devices?summaryOnly=true", "")
	require.EqualValues(t, 2, sum.at("summary.total"))
	require.EqualValues(t, 2, sum.at("summary.summaryStatus.Unknown"))
	require.Empty(t, sum.at("items"))
	require.EqualValues(t, 1, h.ok("GET", "/api/v1/devices?summaryOnly=true&labelSelector=site%3Dhall", "").at("summary.total"))
	require.Len(t, h.ok("GET", "/apis/flightctl.io/v1beta1/devices?summaryOnly=true", "").at("items"), 2, "kubectl knows no such thing")
	require.JSONEq(t, `["alias=press","site=hall"]`, string(h.ok("GET", "/api/v1/labels?kind=Device", "").body))

	p := newHubWithUsers(t)
	require.EqualValues(t, 1, p.ok("GET", "/api/v1/devices?summaryOnly=true", "", "As", "vic").at("summary.total"), "others' nodes are not counted")
	require.Equal(t, 403, p.do("GET", "/api/v1/devices?summaryOnly=true", "", "As", "map").code)
	require.Equal(t, 403, p.do("GET", "/api/v1/labels?kind=Device", "", "As", "map").code)
}

func TestFlightctlsFieldSelectors(t *testing.T) {
	h := flightctlHub(t)
	h.ok("PATCH", "/api/v1/devices/n8", `{"metadata":{"labels":{"alias":"lathe"}}}`, "Content-Type", mergeType)
	for selector, want := range map[string][]string{
		"metadata.name in (n7, n9)":                         {"n7"},
		"metadata.name in(n7,n8),metadata.alias=lathe":      {"n8"},
		"metadata.name notin (n7)":                          {"n8"},
		"metadata.name!=n7":                                 {"n8"},
		"metadata.name==n7":                                 {"n7"},
		"metadata.name contains 7":                          {"n7"},
		"metadata.name notcontains 7":                       {"n8"},
		"metadata.alias contains at":                        {"n8"},
		"status.updated.status=Unknown":                     {"n7", "n8"},
		"status.summary.status in (Online,Error)":           nil,
		"metadata.owner":                                    nil,
		"!metadata.owner":                                   {"n7", "n8"},
		"metadata.creationTimestamp>2026-01-01T00:00:00Z":   {"n7", "n8"},
		"metadata.creationTimestamp < 2026-01-01T00:00:00Z": nil,
		"metadata.creationTimestamp>=2026-11-21T10:00:00Z":  {"n7", "n8"},
	} {
		req, err := http.NewRequest("GET", "http://x/", nil)
		require.NoError(t, err)
		q := req.URL.Query()
		q.Set("fieldSelector", selector)
		require.Equal(t, want, h.ok("GET", "/api/v1/devices?"+q.Encode(), "").names(), selector)
	}
	for _, wrong := range []string{"metadata.name in n7", "metadata.name like n7", "metadata.color=red", "metadata.creationTimestamp>yesterday"} {
		req, err := http.NewRequest("GET", "http://x/", nil)
		require.NoError(t, err)
		q := req.URL.Query()
		q.Set("fieldSelector", wrong)
		require.Equal(t, 400, h.do("GET", "/api/v1/devices?"+q.Encode(), "").code, wrong)
	}
	require.Equal(t, 400, h.do("GET", apiRoot+"/nodes?fieldSelector=metadata.name+in+(n7)", "").code, "Kubernetes' paths have Kubernetes' selectors")
}

func FuzzFieldTerms(f *testing.F) {
	for _, seed := range []string{"a in (b,c)", "!a", "a>2026-01-01T00:00:00Z", "a contains b,c!=d", "((", "a in ()", ",,"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		terms, err := fieldTerms(text)
		for _, term := range terms {
			require.NoError(t, err)
			term.matches("x")
		}
	})
}

// Manifests as people write them don't say who owns an object, and change nothing about that.
func TestFlightctlsPutKeepsTheOwner(t *testing.T) {
	h := newHubWithUsers(t)
	h.ok("PATCH", apiRoot+"/nodes/n1", `{"metadata":{"owner":"Fleet/f1"}}`, "Content-Type", mergeType, "As", "boss", "Impersonate-User", "controller")
	put := h.ok("PUT", "/api/v1/devices/n1", `{"apiVersion":"v1beta1","kind":"Device","metadata":{"name":"n1","labels":{"a":"b"}},"spec":{}}`, "As", "boss")
	require.Equal(t, "Fleet/f1", put.str("metadata.owner"))
	require.Equal(t, "b", put.str("metadata.labels.a"))
	other := h.do("PUT", "/api/v1/devices/n1", `{"apiVersion":"v1beta1","kind":"Device","metadata":{"name":"n1","owner":"Fleet/f2"},"spec":{}}`, "As", "boss")
	require.Equal(t, 409, other.code, "%s", other.body)
	require.Equal(t, 409, h.do("PUT", "/api/v1/devices/n1", `{"apiVersion":"v1beta1","kind":"Device","metadata":{"name":"n1"},"spec":{"os":{"image":"x:1"}}}`, "As", "boss").code)
	require.Equal(t, 409, h.do("PUT", apiRoot+"/nodes/n1", `{"metadata":{"name":"n1"},"spec":{}}`, "As", "boss").code, "a replacement of ours says all")
}

// What is wrong with an object is said by the names that its fields have in the form of the client.
func TestFlightctlsNamesAreInErrors(t *testing.T) {
	h := newHub(t, asUser)
	csr := h.do("POST", "/api/v1/certificatesigningrequests", `{"apiVersion":"flightctl.io/v1beta1","kind":"CertificateSigningRequest","metadata":{"name":"n7"},"spec":{"signerName":"ca","request":"eA=="}}`)
	require.Equal(t, 422, csr.code)
	require.Contains(t, csr.str("message"), "spec.request: is not one CERTIFICATE REQUEST in PEM")
	require.Contains(t, string(csr.body), `"field":"spec.request"`)
	spec := `{"os":{"image":" "},"config":[{"name":"a","inline":[{"path":"x","content":"y"}]}]}`
	for path, object := range map[string]string{
		"devices": `{"apiVersion":"flightctl.io/v1beta1","kind":"Device","metadata":{"name":"n7"},"spec":` + spec + `}`,
		"fleets":  `{"apiVersion":"flightctl.io/v1beta1","kind":"Fleet","metadata":{"name":"f"},"spec":{"template":{"spec":` + spec + `}}}`,
	} {
		bad := h.do("POST", "/api/v1/"+path, object)
		require.Equal(t, 422, bad.code)
		require.Contains(t, bad.str("message"), `spec.config[0].inline[0].path: "x"`)
		require.Regexp(t, `"field":"spec.(template.spec.)?config\[0\].inline\[0\].path"`, string(bad.body))
	}
}

// flightctl's clients decide about a CertificateSigningRequest by its conditions, which they read without looking whether there are any.
func TestFlightctlsDecisionAboutACertificate(t *testing.T) {
	h := newHub(t, asUser)
	body := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"v1beta1","kind":"CertificateSigningRequest","metadata":{"name":%q},"spec":{"signerName":"ca","request":%q}}`, name, encodeBase64(nodeCSR))
	}
	made := h.ok("PUT", "/api/v1/certificatesigningrequests/n7", body("n7"))
	require.Contains(t, string(made.body), `"conditions":[]`)
	require.Equal(t, "ca", made.str("spec.signerName"), "a signer that has no equivalent is kept")
	at := "/api/v1/certificatesigningrequests/n7/approval"
	decide := func(conditions string) hubResponse {
		return h.do("PUT", at, `{"metadata":{"name":"n7"},"status":{"conditions":[`+conditions+`]}}`, "Content-Type", "application/json")
	}
	approved, denied := `{"type":"Approved","status":"True","reason":"Approved"}`, `{"type":"Denied","status":"True"}`
	require.Equal(t, 400, decide("").code)
	require.Equal(t, 400, decide(approved+","+denied).code)
	require.Equal(t, 400, decide(`{"type":"Approved","status":"False"}`).code)
	require.Equal(t, 200, decide(approved).code)
	require.Equal(t, resource.Approved, h.ok("GET", apiRoot+"/enrollmentrequests/n7", "").str("spec.approval"))
	require.Equal(t, 422, decide(denied).code, "a decision is final")

	h.ok("POST", "/api/v1/certificatesigningrequests", fmt.Sprintf(`{"apiVersion":"v1beta1","kind":"CertificateSigningRequest","metadata":{"name":"image","labels":{}},"spec":{"signerName":"flightctl.io/enrollment","request":%q}}`, encodeBase64(namelessCSR(t))))
	require.Equal(t, []string{"image", "n7"}, h.ok("GET", "/api/v1/certificatesigningrequests", "").names())
	require.Equal(t, []string{"n7"}, h.ok("GET", "/api/v1/enrollmentrequests", "").names(), "with an image's certificate nobody joins")
}

// flightctl's clients ask for events with the latest one first, or last.
func TestFlightctlsOrderOfEvents(t *testing.T) {
	h := newHub(t, asUser)
	for name, minute := range map[string]string{"a": "02", "b": "03", "c": "01"} {
		h.ok("POST", "/api/v1/namespaces/default/events", `{"metadata":{"name":"`+name+`"},"involvedObject":{"kind":"Node","namespace":"default","name":"n1"},"reason":"Told","lastTimestamp":"2026-11-20T10:`+minute+`:00Z"}`)
	}
	latest := h.ok("GET", "/api/v1/events?order=desc&limit=2&fieldSelector=reason=Told", "")
	require.Equal(t, []string{"b", "a"}, latest.names())
	require.Contains(t, string(latest.body), `"remainingItemCount":1`)
	require.Equal(t, []string{"c", "a", "b"}, h.ok("GET", "/api/v1/events?order=asc&fieldSelector=reason=Told", "").names())
	for _, query := range []string{"order=up", "order=", "order=asc&search=x", "search=x"} {
		require.Equal(t, 400, h.do("GET", "/api/v1/events?"+query, "").code, query)
	}
}

// What v1beta1 has and nothing here acts on is kept, and said to be.
func TestWhatNothingActsOnIsKeptWithAWarning(t *testing.T) {
	h := newHub(t, asUser)
	device := `{"apiVersion":"v1beta1","kind":"Device","metadata":{"name":"n7"},"spec":{
		"os":{"image":"os:1","catalogItemRef":{"catalog":"c","item":"i","version":"1","channel":"x"}},
		"consoles":[{"sessionID":"1","sessionMetadata":""}],
		"applications":[
			{"name":"c","appType":"container","image":"x/y:1","publishPorts":["80:80"],"runAs":"app","desiredState":"Running","restartGeneration":1,"resources":{"limits":{"cpu":"1"}}},
			{"name":"h","appType":"helm","image":"x/z:1","namespace":"n","values":{"a":{"b":1}},"valuesFiles":["v.yaml"]},
			{"name":"q","appType":"quadlet","image":"x/q:1","volumes":[{"name":"v","reclaimPolicy":"Retain"}],"annotations":{"a":"b"},"catalogItemRef":{"catalog":"c"}}]}}`
	made := h.ok("PUT", "/api/v1/devices/n7?fieldValidation=Strict", device)
	warnings := strings.Join(made.header.Values("Warning"), "\n")
	for _, at := range []string{
		"spec.os.catalogItemRef", "spec.consoles", "spec.applications[0].publishPorts", "spec.applications[0].runAs", "spec.applications[0].desiredState",
		"spec.applications[0].restartGeneration", "spec.applications[0].resources", "spec.applications[1].namespace", "spec.applications[1].values",
		"spec.applications[1].valuesFiles", "spec.applications[2].volumes", "spec.applications[2].annotations",
	} {
		require.Contains(t, warnings, at+" is kept, and nothing acts on it")
	}
	require.NotContains(t, warnings, "spec.os.image")
	read := h.ok("GET", "/api/v1/devices/n7", "", apiVersionHeader, v1beta1)
	require.Equal(t, "i", read.str("spec.os.catalogItemRef.item"))
	require.Equal(t, "v.yaml", read.str("spec.applications.1.valuesFiles.0"))
	for field, wrong := range map[string]string{
		"spec.consoles": `{"consoles":1}`, "spec.os.catalogItemRef": `{"os":{"image":"x","catalogItemRef":"c"}}`,
		"spec.applications[0].restartGeneration": `{"applications":[{"name":"a","appType":"compose","restartGeneration":"x"}]}`,
		"spec.applications[0].valuesFiles[0]":    `{"applications":[{"name":"a","appType":"helm","valuesFiles":[1]}]}`,
	} {
		r := h.do("PUT", "/api/v1/devices/n9", `{"apiVersion":"v1beta1","kind":"Device","metadata":{"name":"n9"},"spec":`+wrong+`}`)
		require.Equal(t, 422, r.code, "%s: %s", field, r.body)
		require.Contains(t, r.str("message"), field)
	}
}

func encodeBase64(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// namelessCSR is a request that names nobody.
func namelessCSR(t *testing.T) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}
