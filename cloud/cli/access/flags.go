// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// The hub of this machine.
const (
	defaultServer = "http://127.0.0.1:8080"
	DefaultMQTT   = "mqtt://127.0.0.1:1883"
)

// Flags are the flags that say which hub a command talks to, and with which credentials.
type Flags struct {
	HTTPFlag, MQTTFlag string // the names of the flags for the addresses; empty: there is none
	HTTP, MQTT         string
	Context            string
	tls                configs.TLSClient
	identity           configs.Identity
	tokenFile          string
	CAHash             string // of edgebus context set
	Namespace          string
}

// Register registers the flags. There is none for an address whose flag's name is empty.
func (a *Flags) Register(cmd *cobra.Command, httpFlag, mqttFlag string) {
	cmd.Flags().StringVar(&a.Context, "context", "", "the context to use (see edgebus context --help)")
	_ = cmd.RegisterFlagCompletionFunc("context", CompleteContexts)
	a.RegisterCredentials(cmd, httpFlag, mqttFlag)
}

// RegisterCredentials are the flags for what a context holds.
func (a *Flags) RegisterCredentials(cmd *cobra.Command, httpFlag, mqttFlag string) {
	a.HTTPFlag, a.MQTTFlag = httpFlag, mqttFlag
	f := cmd.Flags()
	if httpFlag != "" {
		f.StringVar(&a.HTTP, httpFlag, "", "the hub's HTTP address (default: the context's, or "+defaultServer+")")
	}
	if mqttFlag != "" {
		f.StringVar(&a.MQTT, mqttFlag, "", "the broker's MQTT address (default: the context's, or "+DefaultMQTT+")")
	}
	f.StringVar(&a.tls.CA, "ca", "", "file with the certificates of the authorities that sign the hub's certificate")
	f.StringVar(&a.tls.Cert, "cert", "", "file with the client certificate")
	f.StringVar(&a.tls.Key, "key", "", "file with the key of the client certificate")
	f.StringVar(&a.tokenFile, "token-file", "", "file that holds a bearer token to sign in with (see edgebus token --help)")
	if f.Lookup("user") == nil { // a command may have a user of its own
		f.StringVar(&a.identity.User, "user", "", "user name to sign in with")
		f.StringVar(&a.identity.PasswordFile, "password-file", "", "file that holds the password")
	}
}

// RegisterNamespace registers --namespace.
func (a *Flags) RegisterNamespace(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.Namespace, "namespace", "n", "", "namespace (default: the context's, or "+resource.DefaultNamespace+")")
}

// CheckAddresses refuses an MQTT address where an HTTP one belongs, and the reverse: they are easily mixed up.
func (a *Flags) CheckAddresses() error {
	for _, c := range []struct {
		flag, address, other, is, isnt, example string
		wrong                                   []string
	}{
		{a.HTTPFlag, a.HTTP, a.MQTTFlag, "an MQTT", "An HTTP", defaultServer, []string{"mqtt", "mqtts", "ws", "wss", "tcp"}},
		{a.MQTTFlag, a.MQTT, a.HTTPFlag, "an HTTP", "An MQTT", DefaultMQTT, []string{"http", "https"}},
	} {
		scheme, _, _ := strings.Cut(strings.ToLower(c.address), "://")
		if !slices.Contains(c.wrong, scheme) {
			continue
		}
		hint := ""
		if c.other != "" {
			hint = "; --" + c.other + " takes that"
		}
		return exitcode.Errorf(exitcode.Misused, "--%s: %q is %s address%s. %s one looks like %s", c.flag, c.address, c.is, hint, c.isnt, c.example)
	}
	return nil
}

// Resolve returns the hub to ask: by the flags, else the environment, else the context, else the hub of this machine.
//
// A context's credentials are for the addresses that it names: another address is sent none of them.
func (a *Flags) Resolve() (p Target, err error) {
	if err := a.CheckAddresses(); err != nil {
		return p, err
	}
	k, err := ReadKubeconfig()
	if err != nil {
		return p, err
	}
	name := cmp.Or(a.Context, os.Getenv("EDGEBUS_CONTEXT"), k.CurrentContext)
	if name != "" {
		if p, err = k.TargetOf(name); err != nil {
			return p, err
		}
	}
	p.Server = cmp.Or(p.Server, defaultServer)
	if p.Server == defaultServer {
		p.MQTT = cmp.Or(p.MQTT, DefaultMQTT)
	}
	server := p.Server
	if a.HTTPFlag != "" {
		server = cmp.Or(a.HTTP, os.Getenv("EDGEBUS_SERVER"), p.Server)
	}
	mqtt := cmp.Or(a.MQTT, p.MQTT)
	if !sameAddress(server, p.Server) || !sameAddress(mqtt, p.MQTT) {
		p.AuthInfo, p.TLSServerName, p.InsecureSkipTLSVerify, p.ProxyURL = api.AuthInfo{}, "", false, ""
	}
	p.Server, p.MQTT, p.Namespace = server, mqtt, cmp.Or(a.Namespace, p.Namespace, resource.DefaultNamespace)
	if err := p.overrideCredentials(a.tls, a.identity, a.tokenFile); err != nil {
		return p, err
	}
	return p, p.renewToken(name)
}

// StoreContext changes a context, its cluster and its user as the flags say, and checks the result.
func (a *Flags) StoreContext(cmd *cobra.Command, k *Kubeconfig, name string) error {
	password, err := a.identity.Secret()
	if err != nil {
		return err
	}
	k.context(name)
	for flag, set := range map[string]func() error{
		"namespace": func() error { k.context(name).Namespace = a.Namespace; return nil },
		"server":    func() error { k.clusterOf(name).Server = a.HTTP; return nil },
		"mqtt": func() error {
			delete(k.context(name).Extensions, MQTTExtension) // which would take precedence over the cluster's
			return setMQTT(&k.clusterOf(name).Extensions, a.MQTT)
		},
		"ca": func() error {
			c := k.clusterOf(name)
			c.CertificateAuthorityData = nil
			return setPath(&c.CertificateAuthority, a.tls.CA)
		},
		"cert": func() error {
			u := k.userOf(name)
			u.ClientCertificateData = nil
			return setPath(&u.ClientCertificate, a.tls.Cert)
		},
		"key": func() error {
			u := k.userOf(name)
			u.ClientKeyData = nil
			return setPath(&u.ClientKey, a.tls.Key)
		},
		"user":          func() error { k.userOf(name).Username = a.identity.User; return nil },
		"password-file": func() error { k.userOf(name).Password = password; return nil },
		"token-file":    func() error { return setPath(&k.userOf(name).TokenFile, a.tokenFile) },
	} {
		if cmd.Flags().Changed(flag) {
			if err := set(); err != nil {
				return err
			}
		}
	}
	if a.CAHash != "" {
		if a.tls.CA != "" {
			return exitcode.Errorf(exitcode.Misused, "--ca and --ca-hash both say which authority signs the hub's certificate: give one of them")
		}
		if err := k.PinAuthority(cmd.Context(), name, a.CAHash); err != nil {
			return err
		}
	}
	p, err := k.TargetOf(name)
	if err != nil {
		return err
	}
	return p.Validate()
}

// setPath sets the name of a file, which is kept as an absolute path.
func setPath(to *string, file string) (err error) {
	*to = file
	if file != "" {
		*to, err = filepath.Abs(file)
	}
	return err
}
