// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"crypto/x509"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The hub's clock was ahead when its authority was made, and was set right: no node's clock is at fault.
func TestAnAuthorityThatIsNotValidYetIsNamed(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	rootKey, _, err := newKey()
	require.NoError(t, err)
	template := certificateTemplate(now.Add(30*24*time.Hour), 90*24*time.Hour)
	template.IsCA, template.BasicConstraintsValid = true, true
	root := sign(t, template, template, rootKey, rootKey)
	template = certificateTemplate(now.Add(-time.Hour), 90*24*time.Hour)
	template.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1)}
	leaf := sign(t, template, root, rootKey, rootKey)
	o := JoinOptions{Hub: "192.0.2.1:8883", Now: func() time.Time { return now }}
	err = o.verify([]*x509.Certificate{leaf, root}, root)
	require.ErrorContains(t, err, "the hub's authority is not valid yet: it is from 2026-12-22T12:00:00")
	require.NotContains(t, err.Error(), "timedatectl")
}
