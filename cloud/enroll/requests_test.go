// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"bytes"
	"context"
	"crypto/x509"
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
	"github.com/edgebus/edgebus/topics/resource"
)

// A watch ends once a minute, and a request that is deleted before the next one begins has no event.
func TestARequestThatIsDeletedBetweenTwoWatchesCountsNoMore(t *testing.T) {
	st, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	s := New(Options{Reader: st, Writer: st, Watcher: st, Log: zerolog.Nop()})
	s.pending["n1-0123456789ab"] = pendingRequest{"192.0.2.1"}
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	require.NoError(t, s.followRequestsOnce(ctx))
	require.Empty(t, s.pending)
}

// Anybody may ask to be a node, as often as the broker lets them.
func TestRefusedJoinsAreLoggedSampled(t *testing.T) {
	var log bytes.Buffer
	s := New(Options{Log: zerolog.New(&log)})
	for range 1000 {
		s.answer(t.Context(), joinJob{m: broker.Message{Payload: []byte("{"), Publisher: &broker.Identity{}}, done: func(err error) { require.Error(t, err) }})
	}
	require.Contains(t, log.String(), "a node was not enrolled")
	require.Less(t, bytes.Count(log.Bytes(), []byte("\n")), 100)
}

func TestRequestsThatWaitAreBounded(t *testing.T) {
	s := New(Options{Requests: 3, PerAddress: 2, Log: zerolog.Nop()})
	count := func(name, address string) (settled func(), err error) { return s.CountRequest(name, address+":1") }
	_, err := count("a", "192.0.2.1")
	require.NoError(t, err)
	_, err = count("a", "192.0.2.1")
	require.NoError(t, err, "it waits already")
	settled, err := count("b", "192.0.2.1")
	require.NoError(t, err)
	_, err = count("c", "192.0.2.1")
	require.ErrorIs(t, err, resource.Quota, "of one address")
	_, err = count("c", "192.0.2.2")
	require.NoError(t, err)
	_, err = count("d", "192.0.2.3")
	require.ErrorIs(t, err, resource.Quota, "of all")
	settled()
	_, err = count("d", "192.0.2.3")
	require.NoError(t, err, "one was not made after all")
}

func TestAnEnrollersCertificateIsGoodAsLongAsItsRequestIsThere(t *testing.T) {
	j := newTestService(t)
	people := objects.New(objects.Options{Reader: j.st, Writer: j.st, Log: zerolog.Nop(), Now: j.now}).Controller("joe")
	_, err := objects.Create(t.Context(), people, &resource.EnrollmentRequest{
		Metadata: resource.Meta{Name: "image"},
		Spec:     resource.EnrollmentSpec{CSR: newCSR(t, "image"), SignerName: resource.SignerEnroller, Approval: resource.Approved, ExpirationSeconds: 3600},
	})
	require.NoError(t, err)
	require.NoError(t, j.Settle(t.Context(), "image"))
	key := store.Key{Kind: resource.KindEnrollmentRequest, Name: "image"}
	er, err := objects.Get[resource.EnrollmentRequest](t.Context(), people, key)
	require.NoError(t, err)
	block, _ := pem.Decode([]byte(er.Status.Certificate))
	require.NotNil(t, block)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	require.Equal(t, j.now().Add(time.Hour).Unix(), cert.NotAfter.Unix())
	require.Empty(t, j.Revoked("image", cert))
	require.NotEmpty(t, j.Revoked("another", cert), "it is none of that request")
	require.NoError(t, people.Delete(t.Context(), key))
	require.Contains(t, j.Revoked("image", cert), "was deleted")
}
