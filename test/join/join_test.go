// SPDX-License-Identifier: Apache-2.0

// Package join tries how nodes join a hub: a real hub over TLS, the node's own side of it, and MQTT clients that try what
// they must not do.
package join

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/cloud"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/enroll"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// joinHub is a hub that runs until the test ends.
type joinHub struct {
	t         testing.TB
	dir       string
	mqtt, api string
	https     string // the address of the API over TLS
	stop      func()
}

const hubSettings = `
listen: public
data: {dir: %q}
mqtt: {listen: "", tls: {listen: %q}, websocket: {listen: ""}}
http: {listen: %q, tls: {listen: %q}}
limits: {connectRate: 100000, wrongPasswords: %d}
`

// hubAddresses are a hub's.
type hubAddresses struct{ mqtt, api, https string }

// hubOptions are what a test may change of its hub.
type hubOptions struct {
	at       hubAddresses
	validity time.Duration // of nodes' certificates; 0: as in the settings
	log      zerolog.Logger
}

func startHub(t testing.TB, dir string, wrongPasswords int, change ...func(*hubOptions)) *joinHub {
	t.Helper()
	o := hubOptions{at: hubAddresses{harness.FreeAddress(t), harness.FreeAddress(t), harness.FreeAddress(t)}, log: zerolog.Nop()}
	for _, f := range change {
		f(&o)
	}
	api := o.at.api
	h := &joinHub{t: t, dir: dir, mqtt: o.at.mqtt, https: o.at.https, api: "http://" + api}
	file := filepath.Join(t.TempDir(), "hub.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, hubSettings, dir, h.mqtt, api, h.https, wrongPasswords), 0o600))
	cfg, err := configs.Load[configs.Hub]("cloudhub", file, nil)
	require.NoError(t, err)
	if o.validity > 0 {
		cfg.Auth.Authority.NodeValidity = o.validity
	}
	ctx, stop := context.WithCancel(context.Background())
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- cloud.Run(ctx, cloud.Options{Config: cfg, Version: "test", Log: o.log, Ready: func(daemon.Addresses) { close(ready) }})
	}()
	h.stop = sync.OnceFunc(func() {
		stop()
		require.NoError(t, <-ended)
	})
	t.Cleanup(h.stop)
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		require.NoError(t, err)
	}
	return h
}

// post asks the API, and returns the answer's code.
func (h *joinHub) post(path string, body, into any) int {
	h.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(h.t, err)
	r, err := http.Post(h.api+path, "application/json", bytes.NewReader(text))
	require.NoError(h.t, err)
	defer r.Body.Close()
	if into != nil {
		require.NoError(h.t, json.NewDecoder(r.Body).Decode(into))
	}
	return r.StatusCode
}

func (h *joinHub) invite(node string, uses int) string {
	h.t.Helper()
	var a struct{ Token string }
	require.Equal(h.t, http.StatusOK, h.post("/enroll/invitations", map[string]any{"node": node, "uses": uses}, &a))
	return a.Token
}

func (h *joinHub) options(dir, name, token string) enroll.JoinOptions {
	return enroll.JoinOptions{Hub: h.mqtt, DataDir: dir, Node: name, Token: token, Log: zerolog.Nop(), Say: func(string, ...any) {}}
}

func testContext(t testing.TB) context.Context {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(stop)
	return ctx
}

// countFiles counts what is below a directory.
func countFiles(t testing.TB, dir string) (n int) {
	require.NoError(t, filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			n++
		}
		return nil
	}))
	return n
}

func TestAClockThatIsWrongByAYearIsNamed(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	token := h.invite("n1", 1)
	for _, off := range []time.Duration{-365 * 24 * time.Hour, 365 * 24 * time.Hour} {
		dir := t.TempDir()
		o := h.options(dir, "", token)
		o.Now = func() time.Time { return time.Now().Add(off) }
		_, err := enroll.Join(testContext(t), o)
		require.ErrorContains(t, err, "the clock of this node says")
		require.ErrorContains(t, err, "set the clock")
		require.Zero(t, countFiles(t, dir), "nothing is left of it")
	}
	j, err := enroll.Join(testContext(t), h.options(t.TempDir(), "", token))
	require.NoError(t, err, "the token was not used")
	require.Equal(t, "n1", j.Node)
}

func TestWhoseAnswerWasLostMayAskAgain(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	token := h.invite("n1", 1)
	key, csr := joinRequest(t, "n1")
	first := h.enrol(t, "n1", token, resource.JoinRequest{CSR: csr, Token: token})
	require.Equal(t, resource.JoinIssued, first.answer(t).State)
	again := h.enrol(t, "n1", token, resource.JoinRequest{CSR: csr, Token: token})
	a := again.answer(t)
	require.Equal(t, resource.JoinIssued, a.State)
	block, _ := pem.Decode([]byte(a.Certificate))
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	require.True(t, key.PublicKey.Equal(cert.PublicKey))
	require.Equal(t, "n1", cert.Subject.CommonName)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, cert.ExtKeyUsage)
	_, other := joinRequest(t, "n1")
	require.ErrorContains(t, h.enrol(t, "n1", token, resource.JoinRequest{CSR: other, Token: token}).refusal(t), "the token has been used")
}

func TestARevokedNodeNeedsANewInvitation(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	tokens := map[string]string{"used": h.invite("n1", 1), "with uses left": h.invite("n1", 5), "for many nodes": h.invite("n*", 5)}
	_, csr := joinRequest(t, "n1")
	require.Equal(t, resource.JoinIssued, h.enrol(t, "n1", tokens["used"], resource.JoinRequest{CSR: csr, Token: tokens["used"]}).answer(t).State)
	require.Equal(t, http.StatusOK, h.post("/enroll/nodes/n1/revoke", struct{}{}, nil))
	for name, token := range tokens {
		err := h.enrol(t, "n1", token, resource.JoinRequest{CSR: csr, Token: token}).refusal(t)
		require.ErrorContains(t, err, "node n1 was revoked", name)
	}
	fresh := h.invite("n1", 1)
	require.Equal(t, resource.JoinIssued, h.enrol(t, "n1", fresh, resource.JoinRequest{CSR: csr, Token: fresh}).answer(t).State)
}

// signIn connects as a node with the certificate of an answer, and returns the reason code of the CONNACK.
func (h *joinHub) signIn(t *testing.T, node string, key *ecdsa.PrivateKey, a resource.JoinAnswer) (code byte) {
	t.Helper()
	block, _ := pem.Decode([]byte(a.Certificate))
	require.NotNil(t, block)
	c, err := tls.Dial("tcp", h.mqtt, &tls.Config{
		InsecureSkipVerify: true, // a test of what the hub does
		Certificates:       []tls.Certificate{{Certificate: [][]byte{block.Bytes}, PrivateKey: key}},
	})
	require.NoError(t, err)
	defer c.Close()
	id := "node/" + node
	body := append([]byte{0, 4, 'M', 'Q', 'T', 'T', 5, 2, 0, 60, 0, 0, byte(len(id))}, id...)
	_, err = c.Write(append([]byte{0x10, byte(len(body))}, body...))
	require.NoError(t, err)
	var connack [4]byte // the type, a length of one byte or more, flags, the code
	_, err = io.ReadFull(c, connack[:2])
	require.NoError(t, err)
	if connack[1]&0x80 != 0 { // the length goes on
		_, err = io.ReadFull(c, connack[:1])
		require.NoError(t, err)
	}
	_, err = io.ReadFull(c, connack[2:])
	require.NoError(t, err)
	return connack[3]
}

func (h *joinHub) issued(t *testing.T, node, csr string) resource.JoinAnswer {
	t.Helper()
	token := h.invite(node, 1)
	a := h.enrol(t, node, token, resource.JoinRequest{CSR: csr, Token: token}).answer(t)
	require.Equal(t, resource.JoinIssued, a.State, a.Reason)
	return a
}

func (h *joinHub) deleteNode(t *testing.T, name string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, h.api+"/apis/"+resource.APIVersion+"/nodes/"+name, nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusOK, answer.StatusCode)
}

// What was issued for a name is good no more once other hardware has it, though its answer is lost and it asks again.
func TestAJoinWithAnotherKeyRevokesWhatWasIssuedForTheName(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	first, csr := joinRequest(t, "n1")
	was := h.issued(t, "n1", csr)
	require.Zero(t, h.signIn(t, "n1", first, was))
	second, csr := joinRequest(t, "n1")
	var invitation struct{ Token string }
	require.Equal(t, http.StatusOK, h.post("/enroll/invitations", map[string]any{"node": "n1", "uses": 2, "replace": true}, &invitation))
	token := invitation.Token
	var now resource.JoinAnswer
	for range 2 {
		now = h.enrol(t, "n1", token, resource.JoinRequest{CSR: csr, Token: token}).answer(t)
		require.Equal(t, resource.JoinIssued, now.State)
		require.Zero(t, h.signIn(t, "n1", second, now))
		require.NotZero(t, h.signIn(t, "n1", first, was))
	}
	h.stop()
	h = startHub(t, h.dir, 20)
	require.NotZero(t, h.signIn(t, "n1", first, was))

	third, csr := joinRequest(t, "n1") // and so by an approval
	e := h.enrol(t, "n1", "", resource.JoinRequest{CSR: csr})
	path := "/api/v1/enrollmentrequests/" + e.answer(t).Request + "/approval"
	require.Equal(t, http.StatusOK, h.post(path, map[string]any{"approved": true, "replace": true}, nil))
	require.Zero(t, h.signIn(t, "n1", third, e.answer(t)))
	require.NotZero(t, h.signIn(t, "n1", second, now))
}

// A Node that is deleted takes its certificate along, also when another Node gets the name.
func TestACertificateIsForTheNodeThatItWasMadeFor(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	key, csr := joinRequest(t, "n1")
	was := h.issued(t, "n1", csr)
	require.Zero(t, h.signIn(t, "n1", key, was))
	h.deleteNode(t, "n1")
	require.NotZero(t, h.signIn(t, "n1", key, was))
	require.Equal(t, http.StatusCreated, h.post("/apis/"+resource.APIVersion+"/nodes", map[string]any{"metadata": map[string]any{"name": "n1"}, "spec": map[string]any{}}, nil))
	require.NotZero(t, h.signIn(t, "n1", key, was), "the name is there again, and is another Node's")
	require.Zero(t, h.signIn(t, "n1", key, h.issued(t, "n1", csr)))
	require.NotZero(t, h.signIn(t, "n1", key, was))
}

func TestLabelsThatANodeAsksForDoNotReplaceItsNodesWhenItIsApproved(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	const kinds = "/apis/" + resource.APIVersion
	require.Equal(t, http.StatusCreated, h.post(kinds+"/nodes", map[string]any{
		"apiVersion": resource.APIVersion, "kind": "Node", "metadata": map[string]any{"name": "n1", "labels": map[string]string{"site": "hall", "floor": "1"}},
	}, nil))
	_, csr := joinRequest(t, "n1")
	e := h.enrol(t, "n1", "", resource.JoinRequest{CSR: csr, Labels: map[string]string{"site": "vault", "floor": "2", "color": "red"}})
	waiting := e.answer(t)
	require.Equal(t, resource.JoinWaiting, waiting.State)
	require.Equal(t, http.StatusOK, h.post("/api/v1/enrollmentrequests/"+waiting.Request+"/approval", map[string]any{"approved": true, "labels": map[string]string{"floor": "3"}}, nil))
	require.Equal(t, resource.JoinIssued, e.answer(t).State)
	r, err := http.Get(h.api + kinds + "/nodes/n1")
	require.NoError(t, err)
	defer r.Body.Close()
	var n resource.Node
	require.NoError(t, json.NewDecoder(r.Body).Decode(&n))
	require.Equal(t, map[string]string{"site": "hall", "floor": "3", "color": "red"}, n.Metadata.Labels, "the approver's come first, then the Node's, then those that it asked for")
}

// Who chooses a node's labels chooses its fleet: a node gets those of its own settings only where the invitation lets it choose them.
func TestANodeThatJoinsDoesNotChooseItsFleet(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	const nodes = "/apis/" + resource.APIVersion + "/nodes/"
	asked := resource.JoinRequest{
		Labels: map[string]string{"site": "hq", "line": "a", "role/db": "yes"}, LabelFrom: map[string]string{"host": "hostname", "arch": "architecture"},
	}
	for name, c := range map[string]struct {
		invite          map[string]any
		labels, waiting map[string]string
		follows         string
	}{
		"nothing": {
			map[string]any{"labels": map[string]string{"line": "b"}},
			map[string]string{"line": "b"},
			map[string]string{"site": "hq", "role/db": "yes", "host": "{hostname}", "arch": "{architecture}"},
			"",
		},
		"some": {
			map[string]any{"nodeLabels": []string{"line", "role/*", "arch"}},
			map[string]string{"line": "a", "role/db": "yes"},
			map[string]string{"site": "hq", "host": "{hostname}"},
			"arch=architecture",
		},
		"all": {map[string]any{"nodeLabels": []string{"*"}}, asked.Labels, nil, "arch=architecture,host=hostname"},
	} {
		t.Run(name, func(t *testing.T) {
			c.invite["node"] = name
			var invitation struct{ Token string }
			require.Equal(t, http.StatusOK, h.post("/enroll/invitations", c.invite, &invitation))
			_, csr := joinRequest(t, name)
			r := asked
			r.CSR, r.Token = csr, invitation.Token
			require.Equal(t, resource.JoinIssued, h.enrol(t, name, r.Token, r).answer(t).State)
			answer, err := http.Get(h.api + nodes + name)
			require.NoError(t, err)
			defer answer.Body.Close()
			var n resource.Node
			require.NoError(t, json.NewDecoder(answer.Body).Decode(&n))
			require.Equal(t, c.labels, n.Metadata.Labels)
			require.Equal(t, c.follows, n.Metadata.Annotations[resource.LabelFromAnnotation])
			var waiting map[string]string
			_ = json.Unmarshal([]byte(n.Metadata.Annotations["edgebus.io/asked-labels"]), &waiting) // there may be none
			require.Equal(t, c.waiting, waiting)
		})
	}
	require.Equal(t, http.StatusUnprocessableEntity, h.post("/enroll/invitations", map[string]any{"node": "n", "nodeLabels": []string{"["}}, nil))
}

func TestWhatARequestMayNotAskFor(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	token := h.invite("n1", 1)
	_, foreign := joinRequest(t, "n2")
	_, own := joinRequest(t, "n1")
	for name, tt := range map[string]struct {
		r    resource.JoinRequest
		what string
	}{
		"another's name":  {resource.JoinRequest{CSR: foreign, Token: token}, `it asks for a certificate of "n2", but the node is n1`},
		"rubbish":         {resource.JoinRequest{CSR: "rubbish", Token: token}, "is not one CERTIFICATE REQUEST in PEM"},
		"rubbish in PEM":  {resource.JoinRequest{CSR: "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", Token: token}, "is no request for a certificate"},
		"nothing":         {resource.JoinRequest{Token: token}, "csr: is required"},
		"a label":         {resource.JoinRequest{CSR: own, Token: token, Labels: map[string]string{"a b": "c"}}, "a label's name"},
		"another's token": {resource.JoinRequest{CSR: own, Token: h.invite("n3", 1)}, "the token is for the node n3, not for n1"},
	} {
		require.ErrorContains(t, h.enrol(t, "n1", token, tt.r).refusal(t), tt.what, name)
	}
	long, err := json.Marshal(resource.JoinRequest{CSR: strings.Repeat("A", resource.MaxJoinRequest)})
	require.NoError(t, err)
	require.ErrorContains(t, h.enrolRaw(t, "n1", token, long).refusal(t), "at most 16384 are taken")
	require.Equal(t, resource.JoinIssued, h.enrol(t, "n1", token, resource.JoinRequest{CSR: own, Token: token}).answer(t).State, "the token is as good as before")
}

func TestAnEnrolleeMayDoNothingElse(t *testing.T) {
	h := startHub(t, t.TempDir(), 20)
	e := h.enrolRaw(t, "n1", h.invite("n1", 1), []byte("{}"))
	require.Error(t, e.refusal(t))
	for _, topic := range []string{
		"users/own", "v1/nodes/n1/sync/up", "v1/nodes/n2/enroll/" + e.id, "v1/nodes/n1/enroll/other", "v1/nodes/n1/devices/lamp/desired/power", "v1/nodes/n1/bridge/x",
	} {
		var no *client.Refused
		require.ErrorAs(t, e.c.Publish(testContext(t), client.Message{Topic: topic, Payload: []byte("x"), QoS: 1}), &no, topic)
	}
	for _, filter := range []string{"#", "+/+", "v1/nodes/#", "v1/nodes/n1/sync/down", "v1/nodes/n1/enroll/+/answer", "v1/nodes/n1/enroll/other/answer", "$SYS/#", "users/own", "$share/g/#"} {
		var no *client.Refused
		require.ErrorAs(t, e.c.Subscribe(testContext(t), client.Subscription{Filter: filter}), &no, filter)
	}
}

func TestWrongTokensAreThrottled(t *testing.T) {
	h := startHub(t, t.TempDir(), 3)
	pin, err := resource.ParseJoinToken(h.invite("n1", 1))
	require.NoError(t, err)
	wrong := resource.JoinToken{Authority: pin.Authority, Node: "n1"}.String()
	for range 3 {
		_, err := enroll.Join(testContext(t), h.options(t.TempDir(), "", wrong))
		require.ErrorContains(t, err, "the hub knows no such token")
	}
	_, err = enroll.Join(testContext(t), h.options(t.TempDir(), "", wrong))
	require.ErrorContains(t, err, "too many wrong tokens")
}

// joinRequest makes a key and a request of it.
func joinRequest(t testing.TB, name string) (*ecdsa.PrivateKey, string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	require.NoError(t, err)
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// enrollee is a client that enrols, and what it has sent.
type enrollee struct {
	id       string
	c        *client.Client
	outcome  chan error
	answered chan resource.JoinAnswer
}

func (h *joinHub) enrol(t *testing.T, node, token string, r resource.JoinRequest) *enrollee {
	payload, err := json.Marshal(r)
	require.NoError(t, err)
	return h.enrolRaw(t, node, token, payload)
}

func (h *joinHub) enrolRaw(t *testing.T, node, token string, payload []byte) *enrollee {
	e := &enrollee{id: fmt.Sprintf("t%x", time.Now().UnixNano()), outcome: make(chan error, 1), answered: make(chan resource.JoinAnswer, 1)}
	at := topics.Address{Node: node, Kind: topics.KindEnroll, Device: e.id}.String()
	var err error
	e.c, err = client.New(client.Options{
		Servers: []string{"mqtts://" + h.mqtt}, ClientID: "enroll/" + e.id, User: "enroll/" + node, Password: token, CleanStart: true,
		TLS: &tls.Config{InsecureSkipVerify: true}, Log: zerolog.Nop(), Subscriptions: []client.Subscription{{Filter: at + "/answer", QoS: 1}}, // a test of what the hub does
		OnConnect: func(context.Context, bool) error {
			e.c.PublishAsync(client.Message{Topic: at, Payload: payload, QoS: 1}, func(err error) { e.outcome <- err })
			return nil
		},
		OnMessage: func(m client.Message) {
			var a resource.JoinAnswer
			if json.Unmarshal(m.Payload, &a) == nil {
				e.answered <- a
			}
		},
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = e.c.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return e
}

func (e *enrollee) refusal(t *testing.T) error {
	select {
	case err := <-e.outcome:
		return err
	case <-testContext(t).Done():
		t.Fatal("no outcome")
		return nil
	}
}

func (e *enrollee) answer(t *testing.T) resource.JoinAnswer {
	select {
	case a := <-e.answered:
		return a
	case err := <-e.outcome:
		require.NoError(t, err)
		select {
		case a := <-e.answered:
			return a
		case <-testContext(t).Done():
		}
	case <-testContext(t).Done():
	}
	t.Fatal("no answer")
	return resource.JoinAnswer{}
}

// BenchmarkAThousandNodesJoin has so many nodes join at once, each with a key and two TLS connections of its own.
func BenchmarkAThousandNodesJoin(b *testing.B) {
	const nodes = 1000
	for range b.N {
		b.StopTimer()
		h := startHub(b, b.TempDir(), 20)
		token := h.invite("node-*", nodes)
		dir := b.TempDir()
		b.StartTimer()
		var all sync.WaitGroup
		errs := make([]error, nodes)
		for i := range nodes {
			all.Go(func() {
				name := fmt.Sprintf("node-%d", i)
				j, err := enroll.Join(context.Background(), h.options(filepath.Join(dir, name), name, token))
				if errs[i] = err; err == nil {
					errs[i] = j.Close()
				}
			})
		}
		all.Wait()
		b.StopTimer()
		for _, err := range errs {
			require.NoError(b, err)
		}
		h.stop()
	}
}
