// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/url"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/topics/resource"
)

// CAHashUsage is the help of --ca-hash.
const CAHashUsage = "take the hub's authority from the hub itself, if it has this fingerprint: sha256:…, as edgebus authority prints it"

const pinTimeout = 10 * time.Second // for the hub to show its certificate

// PinAuthority keeps the authority of a context's hub in the cluster of the context, if it has that fingerprint. Nothing is written yet.
func (k *Kubeconfig) PinAuthority(ctx context.Context, name, hash string) error {
	p, err := k.TargetOf(name)
	if err != nil {
		return err
	}
	root, err := p.authority(ctx, hash)
	if err != nil {
		return err
	}
	c := k.clusterOf(name)
	c.CertificateAuthority, c.InsecureSkipTLSVerify = "", false
	c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Raw})
	return nil
}

// authority asks the hub for the certificate of the authority that signs its own, as edgecore join does. The hub is sent nothing before
// that is known to be the one with the fingerprint.
func (p *Target) authority(ctx context.Context, hash string) (*x509.Certificate, error) {
	pin, err := resource.ParseFingerprint(hash)
	if err != nil {
		return nil, exitcode.Errorf(exitcode.Misused, "--ca-hash: %w", err)
	}
	u, err := url.Parse(p.Server)
	if err != nil || u.Scheme != "https" {
		return nil, exitcode.Errorf(exitcode.Misused, "--ca-hash is for an address that begins with https:// (--server), since a hub shows its authority over TLS, and not for %q", p.Server)
	}
	ctx, cancel := context.WithTimeout(ctx, pinTimeout)
	defer cancel()
	host := cmp.Or(p.TLSServerName, u.Hostname())
	d := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, InsecureSkipVerify: true}} //nolint:gosec // G402: verified below, by the fingerprint, before anything is sent
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
	if err != nil {
		return nil, exitcode.Errorf(exitcode.Unreachable, "no answer from the hub at %s: %w", p.Server, err)
	}
	defer conn.Close()
	chain := conn.(*tls.Conn).ConnectionState().PeerCertificates
	root := resource.PinnedAuthority(chain, pin[:])
	if root == nil {
		return nil, exitcode.Errorf(exitcode.Refused, "%s is not the hub that was meant: its authority is %s, and should be sha256:%x. Somebody may be between this machine and the hub. Nothing was sent to it",
			p.Server, resource.Fingerprint(chain[len(chain)-1].Raw), pin)
	}
	if err := resource.VerifyChain(chain, root, host, time.Now()); err != nil {
		return nil, exitcode.Errorf(exitcode.Refused, "the certificate of the hub at %s: %w", p.Server, err)
	}
	return root, nil
}
