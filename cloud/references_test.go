// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/sources"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/test/controltest"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	uploadedDigest = resource.DigestPrefix + "1111111111111111111111111111111111111111111111111111111111111111"
	fetchedDigest  = resource.DigestPrefix + "2222222222222222222222222222222222222222222222222222222222222222"
)

// referenceHub is the API of a hub whose objects refer to each other.
type referenceHub struct {
	*testing.T
	api  http.Handler
	objs *objects.Registry
}

var refererRights = map[string]broker.Identity{
	"boss":       {User: "boss", Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}},
	"ann":        {User: "ann", Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"n1", "n1-*"}},
	"anonymous":  {Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}},
	"controller": {User: "robot", Roles: []topics.Role{topics.RoleController}},
	"vic":        {User: "vic", Roles: []topics.Role{topics.RoleViewer}, Nodes: []string{"*"}},
	"n1":         {User: "node/n1", Node: "n1", Roles: []topics.Role{topics.RoleNode}},
}

func newReferenceHub(t *testing.T) *referenceHub {
	st, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), hubdata.LogDir)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	r := &referenceHub{T: t, objs: objects.New(objects.Options{
		Reader: st, Writer: st, Log: zerolog.Nop(), Seal: controltest.PlainSealer{}, Managers: api.Managers(), NodeReferences: nodeReferences(st), Fetched: sources.IsFetched(st),
	})}
	r.api = api.New(api.Options{
		Objects: r.objs, Reader: st, Watcher: st, Log: zerolog.Nop(),
		Authenticate: func(req *http.Request) (broker.Identity, error) { return refererRights[req.Header.Get("As")], nil },
	})
	source, err := json.Marshal(resource.Reference{Type: resource.RefGit, Source: "private", Files: []resource.InlineFile{{Path: "/key", Digest: fetchedDigest, Size: 3}}})
	require.NoError(t, err)
	_, err = st.Create(context.Background(), store.Object{Key: store.Key{Kind: resource.KindSource, Name: "s"}, Data: source})
	require.NoError(t, err)
	r.ok("boss", "POST", "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"vpn"},"stringData":{"key":"k"}}`)
	r.ok("boss", "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"cm"},"data":{"a":"b"}}`)
	r.ok("boss", "POST", apiRoot+"/repositories", `{"metadata":{"name":"private"},"spec":{"url":"https://git.example/private.git"}}`)
	r.ok("boss", "POST", apiRoot+"/repositories", `{"metadata":{"name":"registry"},"spec":{"type":"oci","url":"oci://registry.example/team","secretRef":{"name":"vpn"}}}`)
	return r
}

const apiRoot = "/apis/edgebus.io/v1alpha1"

func (r *referenceHub) do(as, method, path, body string) *httptest.ResponseRecorder {
	r.Helper()
	media := "application/json"
	switch {
	case method == "PATCH" && strings.Contains(path, "fieldManager="):
		media = "application/apply-patch+yaml"
	case method == "PATCH" && strings.HasPrefix(body, "["):
		media = "application/json-patch+json"
	case method == "PATCH":
		media = "application/merge-patch+json"
	}
	req := httptest.NewRequestWithContext(r.Context(), method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", media)
	if as == "anonymous as controller" {
		as = "anonymous"
		req.Header.Set("Impersonate-User", "controller")
	}
	req.Header.Set("As", as)
	w := httptest.NewRecorder()
	r.api.ServeHTTP(w, req)
	return w
}

func (r *referenceHub) ok(as, method, path, body string) {
	r.Helper()
	w := r.do(as, method, path, body)
	require.Less(r, w.Code, 300, "%s: %s %s %s: %s", as, method, path, body, w.Body)
}

// referenceCases are what a node's spec may refer to, and who may have it do so.
var referenceCases = []struct {
	name, spec string
	may        string
}{
	{"a Secret", `{"config":[{"name":"x","configType":"KubernetesSecretProviderSpec","secretRef":{"name":"vpn","mountPath":"/srv"}}]}`, "boss, controller"},
	{"a Secret that is to come", `{"config":[{"name":"x","configType":"KubernetesSecretProviderSpec","secretRef":{"name":"later","mountPath":"/srv"}}]}`, "boss, controller"},
	{"a ConfigMap", `{"config":[{"name":"x","configType":"ConfigMapProviderSpec","configMapRef":{"name":"cm","mountPath":"/srv"}}]}`, "boss, controller, ann, anonymous, anonymous as controller"},
	{"a repository of git", `{"config":[{"name":"x","configType":"GitConfigProviderSpec","gitRef":{"repository":"private","targetRevision":"main","path":"/a","mountPath":"/srv"}}]}`, "boss, controller"},
	{"an address", `{"config":[{"name":"x","configType":"HttpConfigProviderSpec","httpRef":{"repository":"private","suffix":"/a","filePath":"/srv/a"}}]}`, "boss, controller"},
	{"an artifact of a private registry", `{"config":[{"name":"x","configType":"OciConfigProviderSpec","ociRef":{"image":"registry.example/team/a:1","mountPath":"/srv"}}]}`, "boss, controller"},
	{"an artifact of another registry", `{"config":[{"name":"x","configType":"OciConfigProviderSpec","ociRef":{"image":"public.example/a:1","mountPath":"/srv"}}]}`, "boss, controller, ann, anonymous, anonymous as controller"},
	{"an application of a private registry", `{"applications":[{"name":"a","appType":"compose","image":"registry.example/team/a:1"}]}`, "boss, controller"},
	{"a blob", `{"config":[{"name":"x","configType":"FileListProviderSpec","files":[{"path":"/srv/a","digest":"` + uploadedDigest + `","size":3}]}]}`, "boss, controller, anonymous, anonymous as controller"},
	{"a blob of an application", `{"applications":[{"name":"a","appType":"compose","files":[{"path":"compose.yaml","digest":"` + uploadedDigest + `","size":3}]}]}`, "boss, controller, anonymous, anonymous as controller"},
	{"a blob from a repository", `{"config":[{"name":"x","configType":"FileListProviderSpec","files":[{"path":"/srv/a","digest":"` + fetchedDigest + `","size":3}]}]}`, "boss, controller"},
}

// writePath is how something comes to what a spec refers to. before is done by who may do everything.
type writePath struct {
	before func(r *referenceHub, spec string)
	// by is the request; SPEC stands for the spec.
	method, path, body string
	// of are those who may use the way at all; empty: all operators.
	of string
	// lacks is what the form of the request has no field for.
	lacks string
}

// notOfFlightctl are the references that its forms have no field for.
const notOfFlightctl = "a ConfigMap, a blob, a blob of an application, a blob from a repository"

const allNodes = "boss, controller, anonymous, anonymous as controller"

// No topic of MQTT is one: specs of Nodes and templates of Fleets are written by the API alone. Nor is a form of KubeEdge's: a Device has no
// Secret, and the imageSecrets of a job have no effect.
var writePaths = map[string]writePath{
	"create":            {method: "POST", path: apiRoot + "/nodes", body: `{"metadata":{"name":"n1-new"},"spec":SPEC}`},
	"replace":           {method: "PUT", path: apiRoot + "/nodes/n1", body: `{"metadata":{"name":"n1"},"spec":SPEC}`},
	"merge patch":       {method: "PATCH", path: apiRoot + "/nodes/n1", body: `{"spec":SPEC}`},
	"JSON patch":        {method: "PATCH", path: apiRoot + "/nodes/n1", body: `[{"op":"add","path":"/spec","value":SPEC}]`},
	"server-side apply": {method: "PATCH", path: apiRoot + "/nodes/n1?fieldManager=m", body: `{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","metadata":{"name":"n1"},"spec":SPEC}`},
	"an import": {
		method: "POST", path: apiRoot + "/nodes", body: `{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","metadata":{"name":"n1-new","uid":"7","generation":7,` +
			`"creationTimestamp":"2026-01-02T03:04:05Z"},"spec":SPEC,"status":{"renderedVersion":"7"}}`,
	},
	"an export that is applied": {
		method: "PATCH", path: apiRoot + "/nodes/n1?fieldManager=edgebus&force=true",
		body: `{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","metadata":{"name":"n1","labels":{"site":"n1"}},"spec":SPEC,"status":{"renderedVersion":"7"}}`,
	},
	"a Device of flightctl": {
		method: "POST", path: "/apis/flightctl.io/v1beta1/devices", lacks: notOfFlightctl,
		body: `{"apiVersion":"flightctl.io/v1beta1","kind":"Device","metadata":{"name":"n1-new"},"spec":SPEC}`,
	},
	"a Device of flightctl that is replaced": {
		method: "PUT", path: "/api/v1/devices/n1", lacks: notOfFlightctl, body: `{"apiVersion":"v1beta1","kind":"Device","metadata":{"name":"n1"},"spec":SPEC}`,
	},
	"a Device of flightctl that is applied": {
		method: "PATCH", path: "/apis/flightctl.io/v1beta1/devices/n1?fieldManager=m", lacks: notOfFlightctl,
		body: `{"apiVersion":"flightctl.io/v1beta1","kind":"Device","metadata":{"name":"n1"},"spec":SPEC}`,
	},
	"a Fleet of flightctl": {
		method: "POST", path: "/api/v1/fleets", lacks: notOfFlightctl, of: allNodes,
		body: `{"apiVersion":"v1beta1","kind":"Fleet","metadata":{"name":"mine"},"spec":{"selector":{"matchLabels":{"site":"n1"}},"template":{"spec":SPEC}}}`,
	},
	"a label that a fleet matches": {
		before: (*referenceHub).fleet, method: "PATCH", path: apiRoot + "/nodes/n1", body: `{"metadata":{"labels":{"site":"hq"}}}`,
	},
	"a label of a new node that a fleet matches": {
		before: (*referenceHub).fleet, method: "POST", path: apiRoot + "/nodes", body: `{"metadata":{"name":"n1-new","labels":{"site":"hq"}},"spec":{}}`,
	},
	"a label in flightctl's form": {
		before: (*referenceHub).fleet, method: "PATCH", path: "/api/v1/devices/n1", body: `{"metadata":{"labels":{"site":"hq"}}}`,
	},
	"labels that follow what the node reports": {
		before: (*referenceHub).fleet, method: "PATCH", path: apiRoot + "/nodes/n1", body: `{"metadata":{"annotations":{"edgebus.io/label-from":"site=hostname"}}}`,
	},
	"an approval": {
		before: func(r *referenceHub, spec string) { r.fleet(spec); r.request("n1-new") },
		method: "PATCH", path: apiRoot + "/enrollmentrequests/n1-new", body: `{"spec":{"approval":"Approved","labels":{"site":"hq"}}}`, of: allNodes,
	},
	"an approval in the name of a node that has it": {
		before: func(r *referenceHub, spec string) {
			r.ok("boss", "PATCH", apiRoot+"/nodes/n1", `{"spec":`+spec+`}`)
			r.request("n1")
		},
		method: "PUT", path: "/api/v1/enrollmentrequests/n1/approval", body: `{"approved":true}`, of: allNodes,
	},
	"a fleet": {
		method: "POST", path: apiRoot + "/fleets", of: allNodes,
		body: `{"metadata":{"name":"mine"},"spec":{"selector":{"matchLabels":{"site":"n1"}},"template":{"spec":SPEC}}}`,
	},
	"the selector of a fleet": {
		before: (*referenceHub).fleet, method: "PATCH", path: apiRoot + "/fleets/hq", body: `{"spec":{"selector":{"matchLabels":{"site":"n1"}}}}`, of: allNodes,
	},
	"a fleet that is rolled back": {
		before: func(r *referenceHub, spec string) {
			r.fleet(`{}`)
			r.ok("controller", "POST", apiRoot+"/templateversions", `{"metadata":{"name":"hq-1"},"spec":{"fleet":"hq","template":{"spec":`+spec+`}}}`)
		},
		method: "PATCH", path: apiRoot + "/fleets/hq", body: `{"metadata":{"annotations":{"fleet-controller/rollBackTo":"hq-1"}}}`, of: allNodes,
	},
	"a version of a template": {
		method: "POST", path: apiRoot + "/templateversions", body: `{"metadata":{"name":"hq-1"},"spec":{"fleet":"hq","template":{"spec":SPEC}}}`,
		of: "controller, anonymous as controller",
	},
	"the owner of a node": {
		before: (*referenceHub).fleet, method: "PATCH", path: apiRoot + "/nodes/n1", body: `{"metadata":{"owner":"Fleet/hq"}}`, of: "anonymous as controller",
	},
}

func (r *referenceHub) fleet(spec string) {
	r.Helper()
	r.ok("boss", "POST", apiRoot+"/fleets", `{"metadata":{"name":"hq"},"spec":{"selector":{"matchLabels":{"site":"hq"}},"template":{"spec":`+spec+`}}}`)
}

func csrFor(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	require.NoError(t, err)
	csr := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	text, err := json.Marshal(string(csr))
	require.NoError(t, err)
	return string(text)
}

// request makes the request of a node that wants to join.
func (r *referenceHub) request(node string) {
	r.Helper()
	r.ok("boss", "POST", apiRoot+"/enrollmentrequests", `{"metadata":{"name":"`+node+`"},"spec":{"csr":`+csrFor(r.T, node)+`,"nodeName":"`+node+`"}}`)
}

func inList(who, list string) bool {
	return list == "" || slices.Contains(strings.Split(list, ", "), who)
}

// Who has a node refer to something gets it by way of the node: only who may read it may do so, by whatever way.
func TestAReferenceIsOnlyForWhoMayReadWhatItNames(t *testing.T) {
	for name, by := range writePaths {
		for _, ref := range referenceCases {
			if by.lacks != "" && inList(ref.name, by.lacks) {
				continue
			}
			r := newReferenceHub(t)
			r.ok("boss", "POST", apiRoot+"/nodes", `{"metadata":{"name":"n1","labels":{"site":"n1"}},"spec":{}}`)
			if by.before != nil {
				by.before(r, ref.spec)
			}
			for _, as := range []string{"vic", "n1", "ann", "anonymous", "anonymous as controller", "controller", "boss"} {
				path := by.path + "?dryRun=All"
				if strings.Contains(by.path, "?") {
					path = by.path + "&dryRun=All"
				}
				w := r.do(as, by.method, path, strings.ReplaceAll(by.body, "SPEC", ref.spec))
				what := fmt.Sprintf("%s refers to %s by %s: %s", as, ref.name, name, w.Body)
				switch uses := inList(as, "boss, controller, ann, anonymous, anonymous as controller") && inList(as, by.of); {
				case uses && inList(as, ref.may):
					require.Less(t, w.Code, 300, what)
				case uses:
					require.Equal(t, http.StatusForbidden, w.Code, what)
					require.Contains(t, w.Body.String(), "may not read", what)
				default:
					require.Equal(t, http.StatusForbidden, w.Code, what)
				}
			}
		}
	}
}

// What a node has it keeps: a reference that was there before is no new one, whoever writes the rest of the object.
func TestAReferenceThatWasThereStays(t *testing.T) {
	for _, ref := range referenceCases {
		r := newReferenceHub(t)
		r.ok("boss", "POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"},"spec":`+ref.spec+`}`)
		r.ok("ann", "PATCH", apiRoot+"/nodes/n1", `{"metadata":{"labels":{"a":"b"}},"spec":{"drift":"report"}}`)
		r.ok("ann", "PATCH", apiRoot+"/nodes/n1", `{"spec":{"config":null,"applications":null}}`)
	}
}

// A template may choose what it refers to by a node's annotations, which the node's own operator writes.
func TestWhatATemplateMakesOfAnAnnotationIsAReference(t *testing.T) {
	r := newReferenceHub(t)
	r.fleet(`{"config":[{"name":"x","configType":"KubernetesSecretProviderSpec","secretRef":{"name":"{{ .metadata.annotations.what }}","mountPath":"/srv"}}]}`)
	r.ok("boss", "POST", apiRoot+"/nodes", `{"metadata":{"name":"n1","labels":{"site":"hq"},"annotations":{"what":"mine"}},"spec":{}}`)
	r.ok("ann", "PATCH", apiRoot+"/nodes/n1", `{"metadata":{"annotations":{"other":"x"}}}`)
	w := r.do("ann", "PATCH", apiRoot+"/nodes/n1", `{"metadata":{"annotations":{"what":"vpn"}}}`)
	require.Equal(t, http.StatusForbidden, w.Code, w.Body)
	require.Contains(t, w.Body.String(), "the Secret vpn, which ann may not read")
}

// A Configuration hands Secrets to the nodes that it selects, and is judged as a fleet is.
func TestAConfigurationIsJudgedByItsSecretsAndItsNodes(t *testing.T) {
	r := newReferenceHub(t)
	const collection = apiRoot + "/namespaces/default/configurations"
	body := func(name, site string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"nodeSelector":{"matchLabels":{"site":"` + site + `"}},"discoveryHandler":{"name":"h","discoveryProperties":[` +
			`{"name":"p","valueFrom":{"secretKeyRef":{"name":"vpn","key":"key"}}}]}}}`
	}
	r.ok("boss", "POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"},"spec":{}}`)
	r.ok("boss", "POST", collection, body("c", "hq"))
	for _, c := range [][4]string{
		{"anonymous", "POST", collection, body("d", "x")},
		{"anonymous", "POST", "/apis/akri.sh/v0/namespaces/default/configurations", strings.Replace(body("d", "x"), `{`, `{"apiVersion":"akri.sh/v0","kind":"Configuration",`, 1)},
		{"anonymous", "PATCH", collection + "/c", `{"spec":{"nodeSelector":null}}`},
		{"anonymous", "PATCH", apiRoot + "/nodes/n1", `{"metadata":{"labels":{"site":"hq"}}}`},
		{"ann", "PATCH", apiRoot + "/nodes/n1", `{"metadata":{"labels":{"site":"hq"}}}`},
		{"ann", "PATCH", apiRoot + "/nodes/n1", `{"metadata":{"annotations":{"edgebus.io/label-from":"site=hostname"}}}`},
	} {
		w := r.do(c[0], c[1], c[2], c[3])
		require.Equal(t, http.StatusForbidden, w.Code, "%v: %s", c, w.Body)
		require.Contains(t, w.Body.String(), "the Secret vpn", c)
	}
	r.ok("boss", "PATCH", apiRoot+"/nodes/n1", `{"metadata":{"labels":{"site":"hq"}}}`)
}

// Who applies a repository's manifests, or allows them to refer to Secrets, needs the right himself.
func TestAResourceSyncIsJudgedByWhatItReadsAndAllows(t *testing.T) {
	r := newReferenceHub(t)
	for _, c := range []struct{ as, repository, allow, refused string }{
		{"anonymous", "private", `[]`, "the Repository private"},
		{"anonymous", "private", `["Secret"]`, "the Repository private"},
		{"ann", "private", `[]`, "forbidden"},
		{"boss", "private", `["Secret","Repository"]`, ""},
	} {
		w := r.do(c.as, "POST", apiRoot+"/resourcesyncs", `{"metadata":{"name":"s"},"spec":{"repository":"`+c.repository+`","targetRevision":"main","path":"/","allow":`+c.allow+`}}`)
		if c.refused == "" {
			require.Less(t, w.Code, 300, w.Body)
			continue
		}
		require.Equal(t, http.StatusForbidden, w.Code, w.Body)
		require.Contains(t, w.Body.String(), c.refused)
	}
	w := r.do("anonymous", "PATCH", apiRoot+"/resourcesyncs/s", `{"spec":{"interval":"1h"}}`)
	require.Less(t, w.Code, 300, w.Body)
}

// What controllers note at objects they decide by: users' writes leave it as it is.
func TestUsersDontWriteWhatControllersNote(t *testing.T) {
	r := newReferenceHub(t)
	notes := `"edgebus.io/joined":"x","edgebus.io/labels-given":"a=b","fleet-controller/assignedTemplateVersion":"hq-1","fleet-controller/batch":"hq-1/1"`
	r.ok("boss", "POST", apiRoot+"/nodes", `{"metadata":{"name":"n1","finalizers":["edgebus.io/in-use","mine.example/f"],"annotations":{"a":"b",`+notes+`}},"spec":{}}`)
	meta := func() resource.Meta {
		var n resource.Node
		require.NoError(t, json.Unmarshal(r.do("boss", "GET", apiRoot+"/nodes/n1", "").Body.Bytes(), &n))
		return n.Metadata
	}
	require.Equal(t, map[string]string{"a": "b"}, meta().Annotations)
	require.Equal(t, []string{"mine.example/f"}, meta().Finalizers)
	r.ok("controller", "PATCH", apiRoot+"/nodes/n1", `{"metadata":{"finalizers":["edgebus.io/fleet"],"annotations":{`+notes+`}}}`)
	noted := meta()
	require.Len(t, noted.Annotations, 5)
	for _, c := range [][2]string{
		{"PATCH", `{"metadata":{"finalizers":[],"annotations":{"edgebus.io/joined":"y","fleet-controller/batch":null}}}`},
		{"PATCH", `{"metadata":{"annotations":null,"finalizers":null}}`},
		{"PUT", `{"metadata":{"name":"n1","annotations":{"a":"b"}},"spec":{}}`},
		{"PUT", `{"metadata":{"name":"n1"},"spec":{}}`},
	} {
		r.ok("boss", c[0], apiRoot+"/nodes/n1", c[1])
		now := meta()
		require.Equal(t, []string{"edgebus.io/fleet"}, now.Finalizers, c)
		now.Annotations["a"] = "b"
		require.Equal(t, noted.Annotations, now.Annotations, c)
	}
	r.ok("controller", "PATCH", apiRoot+"/nodes/n1", `{"metadata":{"finalizers":null,"annotations":null}}`)
	require.Empty(t, meta().Annotations)
}

// An invitation lets in with its maker's rights: that of somebody who wasn't signed in brings no node to what only people see who are.
func TestAnInvitationOfNobodyBringsNoSecrets(t *testing.T) {
	for _, ref := range referenceCases {
		r := newReferenceHub(t)
		r.fleet(ref.spec)
		judge := judgeJoining(r.objs)
		require.NoError(t, judge(t.Context(), "n1", map[string]string{"site": "n1"}, ""))
		for _, by := range []struct{ site, labelFrom string }{{"hq", ""}, {"n1", "site=hostname"}} {
			err := judge(t.Context(), "n1", map[string]string{"site": by.site}, by.labelFrom)
			if inList("anonymous", ref.may) {
				require.NoError(t, err, ref.name)
			} else {
				require.ErrorIs(t, err, resource.Forbidden, ref.name)
			}
		}
	}
}
