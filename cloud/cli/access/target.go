// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/signin"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Target is a hub, and the credentials for it.
type Target struct {
	api.Cluster  `json:"-"`
	api.AuthInfo `json:"-"`
	MQTT         string
	Namespace    string
	PasswordFile string          // comes before Password
	Login        signin.Provider // that the user's token is of; empty: it is of none
}

func sameAddress(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// overrideCredentials replaces the context's credentials by those of flags.
func (p *Target) overrideCredentials(secure configs.TLSClient, who configs.Identity, tokenFile string) error {
	if who.User != "" && tokenFile != "" {
		return exitcode.Errorf(exitcode.Misused, "--user signs in with a password, and --token-file with a token: give one of them")
	}
	if secure.CA != "" {
		p.CertificateAuthority, p.CertificateAuthorityData, p.InsecureSkipTLSVerify = secure.CA, nil, false
	}
	if secure.Cert != "" {
		p.ClientCertificate, p.ClientCertificateData = secure.Cert, nil
	}
	if secure.Key != "" {
		p.ClientKey, p.ClientKeyData = secure.Key, nil
	}
	if who.User != "" {
		p.Username, p.Token, p.TokenFile = who.User, "", ""
	}
	if tokenFile != "" {
		p.Token, p.TokenFile, p.Username, p.Password = "", tokenFile, "", ""
	}
	p.PasswordFile = who.PasswordFile
	if secure.Cert+who.User+tokenFile != "" {
		p.Exec, p.AuthProvider, p.Impersonate = nil, nil, ""
	}
	for field, there := range map[string]bool{"exec": p.Exec != nil, "auth-provider": p.AuthProvider != nil, "as": p.Impersonate != ""} {
		if there {
			return fmt.Errorf("the context's user signs in by %q, which kubectl can and edgebus can't: use a certificate, a token or a password", field)
		}
	}
	return nil
}

// password is the password.
func (p *Target) password() (string, error) {
	return configs.Identity{User: p.Username, Password: p.Password, PasswordFile: p.PasswordFile}.Secret()
}

// bearerToken is the token to sign in with: over HTTP as such, over MQTT as the password.
func (p *Target) bearerToken() (string, error) {
	if p.TokenFile == "" || p.Username != "" {
		return p.Token, nil
	}
	text, err := os.ReadFile(p.TokenFile)
	if err != nil {
		return "", fmt.Errorf("the bearer token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("%s holds no token", p.TokenFile)
	}
	return token, nil
}

// tlsConfig is the TLS configuration for the hub.
func (p *Target) tlsConfig() (*tls.Config, error) {
	ca, caErr := readUnlessGiven("the authority's certificate", p.CertificateAuthorityData, p.CertificateAuthority)
	cert, certErr := readUnlessGiven("the client certificate", p.ClientCertificateData, p.ClientCertificate)
	key, keyErr := readUnlessGiven("the key of the client certificate", p.ClientKeyData, p.ClientKey)
	if err := errors.Join(caErr, certErr, keyErr); err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.TLSServerName, InsecureSkipVerify: p.InsecureSkipTLSVerify} //nolint:gosec // G402: only if the user asks for it (--insecure)
	if len(ca) > 0 {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("certificates of authorities %s: there is no certificate in PEM form", p.CertificateAuthority)
		}
	}
	if len(cert)+len(key) > 0 {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("client certificate %s: %w", p.ClientCertificate, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// readUnlessGiven is data, or what is in the file if there is none.
func readUnlessGiven(what string, data []byte, file string) ([]byte, error) {
	if len(data) > 0 || file == "" {
		return data, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return data, err
}

// Validate validates a hub's addresses and credentials before a request is sent.
func (p *Target) Validate() error {
	for _, a := range []struct{ flag, address, example string }{
		{"--server", p.Server, "https://hub.example.org:8443"}, {"--mqtt", p.MQTT, "mqtts://hub.example.org:8883"},
	} {
		if u, err := url.Parse(a.address); a.address != "" && (err != nil || u.Scheme == "" || u.Host == "") {
			return exitcode.Errorf(exitcode.Misused, "%s: %q is no address; it looks like %s", a.flag, a.address, a.example)
		}
	}
	if p.Namespace != "" && !topics.ValidName(p.Namespace) {
		return exitcode.Errorf(exitcode.Misused, "--namespace: %q is no name", p.Namespace)
	}
	if (p.Username == "") != (p.Password+p.PasswordFile == "") {
		return exitcode.Errorf(exitcode.Misused, "--user and --password-file belong together")
	}
	_, err1 := p.password()
	_, err2 := p.bearerToken()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	_, err := p.tlsConfig()
	return err
}

// Kubeconfig is a kubeconfig with this hub alone, as YAML.
func (p Target) Kubeconfig(name string, embed bool) (text []byte, err error) {
	if p.Password, err = p.password(); err != nil {
		return nil, err
	}
	if embed {
		if p.Token, err = p.bearerToken(); err != nil {
			return nil, err
		}
		p.TokenFile = ""
	}
	p.AuthInfo.Extensions = nil // how to get the next token stays here
	if err := setMQTT(&p.Cluster.Extensions, p.MQTT); err != nil {
		return nil, err
	}
	config := api.Config{
		CurrentContext: name, Clusters: map[string]*api.Cluster{name: &p.Cluster}, AuthInfos: map[string]*api.AuthInfo{name: &p.AuthInfo},
		Contexts: map[string]*api.Context{name: {Cluster: name, AuthInfo: name, Namespace: p.Namespace}},
	}
	if embed {
		p.Cluster.LocationOfOrigin, p.AuthInfo.LocationOfOrigin = "", ""
		if err := api.FlattenConfig(&config); err != nil {
			return nil, err
		}
	}
	return clientcmd.Write(config)
}

// ForCore is a node's core as a target: it has users of its own, so it is only shown the client certificate.
func (p *Target) ForCore(address string) Target {
	core := Target{Cluster: p.Cluster}
	core.Server, core.TLSServerName, core.ProxyURL = address, "", ""
	core.ClientCertificate, core.ClientCertificateData, core.ClientKey, core.ClientKeyData = p.ClientCertificate, p.ClientCertificateData, p.ClientKey, p.ClientKeyData
	return core
}

// APIOptions are the options of a client of the hub's API.
func (p *Target) APIOptions() (o client.Options, err error) {
	o = client.Options{Server: p.Server, User: p.Username}
	if p.ProxyURL != "" {
		if o.Proxy, err = url.Parse(p.ProxyURL); err != nil {
			return o, fmt.Errorf("proxy-url: %w", err)
		}
	}
	if o.TLS, err = p.tlsConfig(); err == nil {
		o.Password, err = p.password()
	}
	if err == nil {
		o.Token, err = p.bearerToken()
	}
	return o, err
}

// renewToken gets the next token of a context that has signed in with edgebus login, if the present one expires soon.
func (p *Target) renewToken(name string) error {
	how := p.Login
	if p.Username != "" || p.Token == "" || p.TokenFile != "" || how.Issuer == "" {
		return nil
	}
	expires := signin.Expiry(p.Token)
	if expires.IsZero() || time.Until(expires) > signin.RenewalMargin {
		return nil
	}
	if how.RefreshToken == "" {
		if time.Until(expires) > 0 {
			return nil
		}
		return exitcode.Errorf(exitcode.Refused, "the token of the context %s expired at %s: run edgebus login", name, resource.FormatTime(expires))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*signin.Timeout)
	defer cancel()
	t, err := how.Refresh(ctx)
	if err != nil {
		if time.Until(expires) > 0 {
			return nil
		}
		return exitcode.Errorf(exitcode.Of(err), "the token of the context %s expired at %s, and is not renewed; run edgebus login: %w", name, resource.FormatTime(expires), err)
	}
	p.Token, how.RefreshToken = t.ID, cmp.Or(t.Refresh, how.RefreshToken)
	err = ChangeKubeconfig(func(k *Kubeconfig) error { return k.StoreToken(name, t.ID, how) })
	if err == nil {
		return nil
	}
	// Another command may have renewed it at the same time. Its token, and its refresh token, are as good.
	if now, again := ReadKubeconfig(); again == nil {
		if other, again := now.TargetOf(name); again == nil && time.Until(signin.Expiry(other.Token)) > signin.RenewalMargin {
			p.Token = other.Token
			return nil
		}
	}
	return err
}
