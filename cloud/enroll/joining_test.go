// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// silentBroker is a broker that nobody is connected to.
type silentBroker struct{}

func (silentBroker) Publish(broker.Message)                     {}
func (silentBroker) Disconnect(string, string) bool             { return false }
func (silentBroker) DisconnectNode(string, string) (found bool) { return false }

// testService is a service with its store, and a clock.
type testService struct {
	*Service
	*clock
	t  *testing.T
	st *disk.Store
}

func newTestService(t *testing.T) *testService {
	t.Helper()
	c := &clock{at: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)}
	st, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	as := objects.New(objects.Options{Reader: st, Writer: st, Log: zerolog.Nop(), Now: c.now}).Controller("enroll")
	return &testService{New(Options{
		Objects:   as,
		Authority: openTestAuthority(t, t.TempDir(), c), Reader: st, Writer: st, Watcher: st, Broker: func() Broker { return silentBroker{} }, Mode: ModeAsk,
		Reserved: func(string) bool { return false }, Hub: "h", Address: func() string { return "hub:8883" }, Log: zerolog.Nop(), Now: c.now,
	}), c, t, st}
}

// newCSR makes a key, and asks for its certificate.
func newCSR(t *testing.T, node string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: node}}, key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// join has a node join with an invitation.
func (j *testService) join(node, token, csr string) error {
	j.t.Helper()
	payload, err := json.Marshal(resource.JoinRequest{CSR: csr, Token: token})
	require.NoError(j.t, err)
	by := &broker.Identity{ClientID: "c", Roles: []topics.Role{topics.RoleEnrollee}}
	_, err = j.handle(context.Background(), joinJob{at: topics.Address{Node: node, Kind: topics.KindEnroll}, m: broker.Message{Payload: payload, Publisher: by}})
	return err
}

func (j *testService) invited(r InviteRequest) (string, error) {
	a, err := j.invitations.invite(j.t.Context(), r, "joe")
	return a.Token, err
}

func TestAnInvitationReplacesANodeThatHasJoinedOnlyIfItSaysSo(t *testing.T) {
	j := newTestService(t)
	first, second, third := newCSR(t, "n1"), newCSR(t, "n1"), newCSR(t, "n1")
	early, err := j.invited(InviteRequest{Node: "n1", Uses: 2})
	require.NoError(t, err)
	require.NoError(t, j.join("n1", early, first))
	require.NoError(t, j.join("n1", early, first), "its answer may have been lost")
	require.ErrorContains(t, j.join("n1", early, second), "--replace", "the token was made before the node joined")

	_, err = j.invited(InviteRequest{Node: "n1"})
	require.ErrorIs(t, err, resource.Conflict)
	require.ErrorContains(t, err, "a node n1 has joined already")
	_, err = j.invited(InviteRequest{Node: "n*", Uses: 2, Replace: true})
	require.ErrorContains(t, err, "replace: ")
	instead, err := j.invited(InviteRequest{Node: "n1", Replace: true})
	require.NoError(t, err)
	require.NoError(t, j.join("n1", instead, second))
	require.ErrorIs(t, j.join("n1", early, first), resource.Unauthorized, "it was replaced")

	j.pass(time.Hour)
	require.NoError(t, j.revoke("n1", "joe", false))
	j.mustForgetStatus("n1")
	again, err := j.invited(InviteRequest{Node: "n1"})
	require.NoError(t, err, "nothing is left to take away")
	require.NoError(t, j.join("n1", again, third))
}

// mustForgetStatus makes a Node as it is in a backup that was made before its revocation.
func (j *testService) mustForgetStatus(node string) {
	j.t.Helper()
	o, err := j.st.Get(j.t.Context(), store.Key{Kind: resource.KindNode, Name: node})
	require.NoError(j.t, err)
	_, err = j.st.Update(j.t.Context(), store.Object{Key: o.Key, Status: []byte{}}, o.Rev)
	require.NoError(j.t, err)
}

// Approvals are objects' writes, whoever makes them and by whichever way.
func TestAnApprovalReplacesANodeThatHasJoinedOnlyIfItSaysSo(t *testing.T) {
	j := newTestService(t)
	registry := objects.New(objects.Options{Reader: j.st, Writer: j.st, Log: zerolog.Nop(), Now: j.now})
	people := registry.Controller("joe")
	decide := func(name string, spec resource.EnrollmentSpec) error {
		return objects.Update(t.Context(), people, store.Key{Kind: resource.KindEnrollmentRequest, Name: name}, func(er *resource.EnrollmentRequest) error {
			er.Spec.Approval, er.Spec.Replace = spec.Approval, spec.Replace
			return nil
		})
	}
	ask := func(name, csr string) {
		_, err := objects.Create(t.Context(), people, &resource.EnrollmentRequest{
			Metadata: resource.Meta{Name: name}, Spec: resource.EnrollmentSpec{CSR: csr, NodeName: "n1"},
		})
		require.NoError(t, err)
	}
	carriedOut := func(name string) resource.EnrollmentStatus {
		key := store.Key{Kind: resource.KindEnrollmentRequest, Name: name}
		o, err := j.st.Get(t.Context(), key)
		require.NoError(t, err)
		j.handleRequest(t.Context(), o)
		er, err := objects.Get[resource.EnrollmentRequest](t.Context(), people, key)
		require.NoError(t, err)
		return er.Status
	}
	for _, name := range []string{"first", "second", "third"} {
		ask(name, newCSR(t, "n1"))
	}
	require.NoError(t, decide("first", resource.EnrollmentSpec{Approval: resource.Approved}))
	require.NoError(t, decide("second", resource.EnrollmentSpec{Approval: resource.Approved}), "no node of that name has joined yet")
	require.NotEmpty(t, carriedOut("first").Certificate)
	late := carriedOut("second")
	require.Empty(t, late.Certificate)
	require.Equal(t, "NameTaken", late.Conditions[0].Reason)

	err := decide("third", resource.EnrollmentSpec{Approval: resource.Approved})
	require.ErrorIs(t, err, resource.Invalid)
	require.ErrorContains(t, err, "spec.replace")
	require.NoError(t, decide("third", resource.EnrollmentSpec{Approval: resource.Approved, Replace: true}))
	require.NotEmpty(t, carriedOut("third").Certificate)

	ask("fourth", newCSR(t, "n1"))
	require.NoError(t, decide("fourth", resource.EnrollmentSpec{Approval: resource.Denied}))
}
