// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

type (
	repositoryForm   canonicalForm[repositorySpec, resource.RepositoryStatus]
	resourceSyncForm canonicalForm[resourceSyncSpec, resource.ResourceSyncStatus]
)

type resourceSyncSpec struct {
	resource.ResourceSyncSpec
	Type keptField[string] `json:"type,omitempty"`
}

// repositorySpec has its credentials here, as a Secret has them in the canonical form.
type repositorySpec struct {
	URL                string              `json:"url,omitempty"`
	Type               string              `json:"type,omitempty"`
	ValidationSuffix   string              `json:"validationSuffix,omitempty"`
	SecretRef          *resource.SecretRef `json:"secretRef,omitempty"`
	InsecureSkipVerify bool                `json:"insecureSkipVerify,omitempty"`
	HTTPConfig         *httpConfig         `json:"httpConfig,omitempty"`
	SSHConfig          *sshConfig          `json:"sshConfig,omitempty"`
	Credentials        map[string][]byte   `json:"credentials,omitempty"`

	Registry               string   `json:"registry,omitempty"` // of type oci, instead of an address
	Scheme                 string   `json:"scheme,omitempty"`
	OCIAuth                *ociAuth `json:"ociAuth,omitempty"`
	CA                     []byte   `json:"ca.crt,omitempty"`
	SkipServerVerification bool     `json:"skipServerVerification,omitempty"`

	AccessMode keptField[string]       `json:"accessMode,omitempty"`
	BaseImages keptField[[]jsonObject] `json:"baseImages,omitempty"`
}

type httpConfig struct {
	Username               string `json:"username,omitempty"`
	Password               string `json:"password,omitempty"`
	Token                  string `json:"token,omitempty"`
	Certificate            []byte `json:"tls.crt,omitempty"`
	Key                    []byte `json:"tls.key,omitempty"`
	CA                     []byte `json:"ca.crt,omitempty"`
	SkipServerVerification bool   `json:"skipServerVerification,omitempty"`
}

type sshConfig struct {
	Key                    []byte `json:"sshPrivateKey,omitempty"`
	Passphrase             string `json:"privateKeyPassphrase,omitempty"`
	SkipServerVerification bool   `json:"skipServerVerification,omitempty"`
}

type ociAuth struct {
	AuthType string `json:"authType,omitempty"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// The keys of credentials, as a Secret has them.
const (
	keyUser, keyPassword, keyToken    = "username", "password", "token"
	keyCertificate, keyCertificateKey = "tls.crt", "tls.key"
	keyCA, keySSH, keySSHPassphrase   = "ca.crt", "ssh-privatekey", "ssh-passphrase"
	typeOCI, schemeHTTP, dockerAuth   = "oci", "http", "docker"
)

func readRepository(f repositoryForm) (out resource.Repository, err error) {
	s := f.Spec
	out.Status = f.Status
	out.Spec = resource.RepositorySpec{URL: s.URL, Type: s.Type, ValidationSuffix: s.ValidationSuffix, SecretRef: s.SecretRef}
	out.Spec.InsecureSkipVerify = s.InsecureSkipVerify || s.SkipServerVerification
	if s.Registry != "" && s.URL == "" {
		out.Spec.URL = typeOCI + "://" + s.Registry
		if s.Scheme == schemeHTTP {
			out.Spec.URL = schemeHTTP + "://" + s.Registry
		}
	}
	set := func(key string, value []byte) {
		if len(value) == 0 {
			return
		}
		if out.Spec.Credentials == nil {
			out.Spec.Credentials = make(map[string][]byte)
		}
		out.Spec.Credentials[key] = value
	}
	for key, value := range s.Credentials {
		set(key, value)
	}
	set(keyCA, s.CA)
	if c := s.HTTPConfig; c != nil {
		out.Spec.InsecureSkipVerify = out.Spec.InsecureSkipVerify || c.SkipServerVerification
		set(keyUser, []byte(c.Username))
		set(keyPassword, []byte(c.Password))
		set(keyToken, []byte(c.Token))
		set(keyCertificate, c.Certificate)
		set(keyCertificateKey, c.Key)
		set(keyCA, c.CA)
	}
	if c := s.SSHConfig; c != nil {
		out.Spec.InsecureSkipVerify = out.Spec.InsecureSkipVerify || c.SkipServerVerification
		set(keySSH, c.Key)
		set(keySSHPassphrase, []byte(c.Passphrase))
	}
	if c := s.OCIAuth; c != nil {
		set(keyUser, []byte(c.Username))
		set(keyPassword, []byte(c.Password))
	}
	return out, nil
}

func showRepository(r resource.Repository) (f repositoryForm) {
	s, c := r.Spec, r.Spec.Credentials
	f.Status = r.Status
	f.Spec = repositorySpec{URL: s.URL, Type: s.Type, ValidationSuffix: s.ValidationSuffix, SecretRef: s.SecretRef}
	ssh := c[keySSH] != nil
	switch {
	case s.Type == typeOCI:
		f.Spec.Scheme, f.Spec.Registry, _ = strings.Cut(s.URL, "://")
		if f.Spec.URL = ""; f.Spec.Scheme == typeOCI {
			f.Spec.Scheme = "https"
		}
		f.Spec.CA, f.Spec.SkipServerVerification = c[keyCA], s.InsecureSkipVerify
		if c[keyUser] != nil {
			f.Spec.OCIAuth = &ociAuth{dockerAuth, string(c[keyUser]), string(c[keyPassword])}
		}
	case ssh:
		f.Spec.SSHConfig = &sshConfig{c[keySSH], string(c[keySSHPassphrase]), s.InsecureSkipVerify}
	case len(c) > 0 || s.InsecureSkipVerify:
		f.Spec.HTTPConfig = &httpConfig{
			string(c[keyUser]), string(c[keyPassword]), string(c[keyToken]), c[keyCertificate], c[keyCertificateKey], c[keyCA], s.InsecureSkipVerify,
		}
	}
	return f
}
