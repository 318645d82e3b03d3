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
	make := func(from time.Time, parent *x509.Certificate, by any, change func(*x509.Certificate)) (*x509.Certificate, any) {
		key, _, err := newKey()
		require.NoError(t, err)
		template := certificateTemplate(from, 90*24*time.Hour)
		change(template)
		if parent == nil {
			parent, by = template, key
		}
		der, err := x509.CreateCertificate(nil, template, parent, key.Public(), by)
		require.NoError(t, err)
		cert, err := x509.ParseCertificate(der)
		require.NoError(t, err)
		return cert, key
	}
	root, key := make(now.Add(30*24*time.Hour), nil, nil, func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true })
	leaf, _ := make(now.Add(-time.Hour), root, key, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1)} })
	o := JoinOptions{Hub: "192.0.2.1:8883", Now: func() time.Time { return now }}
	err := o.verify([]*x509.Certificate{leaf, root}, root)
	require.ErrorContains(t, err, "the hub's authority is not valid yet: it is from 2026-12-22T12:00:00")
	require.NotContains(t, err.Error(), "timedatectl")
}
