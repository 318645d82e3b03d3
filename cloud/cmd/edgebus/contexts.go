package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// The hub of this machine.
const (
	defaultServer = "http://127.0.0.1:8080"
	defaultMQTT   = "mqtt://127.0.0.1:1883"
)

// hubTarget is a hub, and the credentials for it.
type hubTarget struct {
	cluster
	user
	MQTT          string
	Namespace     string
	PasswordFile  string   // comes before Password
	loginProvider provider // that the user's token is of; empty: it is of none
}

// access are the flags that say which hub a command talks to, and with which credentials.
type access struct {
	httpFlag, mqttFlag string // the names of the flags for the addresses; empty: there is none
	http, mqtt         string
	context            string
	tls                configs.TLSClient
	identity           configs.Identity
	tokenFile          string
	caHash             string // of edgebus context set
	namespace          string
}

// flags registers the flags. There is none for an address whose flag's name is empty.
func (a *access) flags(cmd *cobra.Command, httpFlag, mqttFlag string) {
	cmd.Flags().StringVar(&a.context, "context", "", "the context to use (see edgebus context --help)")
	_ = cmd.RegisterFlagCompletionFunc("context", completeContexts)
	a.credentialFlags(cmd, httpFlag, mqttFlag)
}

// credentialFlags are the flags for what a context holds.
func (a *access) credentialFlags(cmd *cobra.Command, httpFlag, mqttFlag string) {
	a.httpFlag, a.mqttFlag = httpFlag, mqttFlag
	f := cmd.Flags()
	if httpFlag != "" {
		f.StringVar(&a.http, httpFlag, "", "the hub's HTTP address (default: the context's, or "+defaultServer+")")
	}
	if mqttFlag != "" {
		f.StringVar(&a.mqtt, mqttFlag, "", "the broker's MQTT address (default: the context's, or "+defaultMQTT+")")
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

func (a *access) namespaceFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.namespace, "namespace", "n", "", "namespace (default: the context's, or "+resource.DefaultNamespace+")")
}

// checkAddresses refuses an MQTT address where an HTTP one belongs, and the reverse: they are easily mixed up.
func (a *access) checkAddresses() error {
	for _, c := range []struct {
		flag, address, other, is, isnt, example string
		wrong                                   []string
	}{
		{a.httpFlag, a.http, a.mqttFlag, "an MQTT", "An HTTP", defaultServer, []string{"mqtt", "mqtts", "ws", "wss", "tcp"}},
		{a.mqttFlag, a.mqtt, a.httpFlag, "an HTTP", "An MQTT", defaultMQTT, []string{"http", "https"}},
	} {
		scheme, _, _ := strings.Cut(strings.ToLower(c.address), "://")
		if !slices.Contains(c.wrong, scheme) {
			continue
		}
		hint := ""
		if c.other != "" {
			hint = "; --" + c.other + " takes that"
		}
		return exitErrorf(misused, "--%s: %q is %s address%s. %s one looks like %s", c.flag, c.address, c.is, hint, c.isnt, c.example)
	}
	return nil
}

// resolve returns the hub to ask: by the flags, else the environment, else the context, else the hub of this machine.
//
// A context's credentials are for the addresses that it names: another address is sent none of them.
func (a *access) resolve() (p hubTarget, err error) {
	if err := a.checkAddresses(); err != nil {
		return p, err
	}
	k, err := readKubeconfig()
	if err != nil {
		return p, err
	}
	name := cmp.Or(a.context, os.Getenv("EDGEBUS_CONTEXT"), k.current())
	if name != "" {
		if p, err = k.targetOf(name); err != nil {
			return p, err
		}
	}
	p.Server = cmp.Or(p.Server, defaultServer)
	if p.Server == defaultServer {
		p.MQTT = cmp.Or(p.MQTT, defaultMQTT)
	}
	server := p.Server
	if a.httpFlag != "" {
		server = cmp.Or(a.http, os.Getenv("EDGEBUS_SERVER"), p.Server)
	}
	mqtt := cmp.Or(a.mqtt, p.MQTT)
	if !sameAddress(server, p.Server) || !sameAddress(mqtt, p.MQTT) {
		p.user, p.ServerName, p.Insecure, p.Proxy = user{}, "", false, ""
	}
	p.Server, p.MQTT, p.Namespace = server, mqtt, cmp.Or(a.namespace, p.Namespace, resource.DefaultNamespace)
	if err := p.overrideCredentials(a.tls, a.identity, a.tokenFile); err != nil {
		return p, err
	}
	return p, p.renewToken(k, name)
}

func sameAddress(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// overrideCredentials replaces the context's credentials by those of flags.
func (p *hubTarget) overrideCredentials(secure configs.TLSClient, who configs.Identity, tokenFile string) error {
	if who.User != "" && tokenFile != "" {
		return exitErrorf(misused, "--user signs in with a password, and --token-file with a token: give one of them")
	}
	if secure.CA != "" {
		p.CA, p.CAData, p.Insecure = secure.CA, nil, false
	}
	if secure.Cert != "" {
		p.Cert, p.CertData = secure.Cert, nil
	}
	if secure.Key != "" {
		p.Key, p.KeyData = secure.Key, nil
	}
	if who.User != "" {
		p.User, p.Token, p.TokenFile = who.User, "", ""
	}
	if tokenFile != "" {
		p.Token, p.TokenFile, p.User, p.Password = "", tokenFile, "", ""
	}
	p.PasswordFile = who.PasswordFile
	if secure.Cert+who.User+tokenFile != "" {
		p.Exec, p.AuthProvider, p.As = nil, nil, ""
	}
	for field, there := range map[string]bool{"exec": p.Exec != nil, "auth-provider": p.AuthProvider != nil, "as": p.As != ""} {
		if there {
			return fmt.Errorf("the context's user signs in by %q, which kubectl can and edgebus can't: use a certificate, a token or a password", field)
		}
	}
	return nil
}

// password is the password.
func (p *hubTarget) password() (string, error) {
	return configs.Identity{User: p.User, Password: p.Password, PasswordFile: p.PasswordFile}.Secret()
}

// bearerToken is the token to sign in with: over HTTP as such, over MQTT as the password.
func (p *hubTarget) bearerToken() (string, error) {
	if p.TokenFile == "" || p.User != "" {
		return p.Token, nil
	}
	text, err := os.ReadFile(p.TokenFile)
	token := strings.TrimSpace(string(text))
	if err == nil && token == "" {
		err = fmt.Errorf("%s holds no token", p.TokenFile)
	}
	return token, err
}

// tlsConfig is the TLS configuration for the hub.
func (p *hubTarget) tlsConfig() (*tls.Config, error) {
	ca, caErr := readUnlessGiven(p.CAData, p.CA)
	cert, certErr := readUnlessGiven(p.CertData, p.Cert)
	key, keyErr := readUnlessGiven(p.KeyData, p.Key)
	if err := errors.Join(caErr, certErr, keyErr); err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.ServerName, InsecureSkipVerify: p.Insecure} //nolint:gosec // G402: only if the user asks for it (--insecure)
	if len(ca) > 0 {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("certificates of authorities %s: there is no certificate in PEM form", p.CA)
		}
	}
	if len(cert)+len(key) > 0 {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("client certificate %s: %w", p.Cert, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// readUnlessGiven is data, or what is in the file if there is none.
func readUnlessGiven(data []byte, file string) ([]byte, error) {
	if len(data) > 0 || file == "" {
		return data, nil
	}
	return os.ReadFile(file)
}

// validate validates a hub's addresses and credentials before a request is sent.
func (p *hubTarget) validate() error {
	for _, a := range []struct{ flag, address, example string }{
		{"--server", p.Server, "https://hub.example.org:8443"}, {"--mqtt", p.MQTT, "mqtts://hub.example.org:8883"},
	} {
		if u, err := url.Parse(a.address); a.address != "" && (err != nil || u.Scheme == "" || u.Host == "") {
			return exitErrorf(misused, "%s: %q is no address; it looks like %s", a.flag, a.address, a.example)
		}
	}
	if p.Namespace != "" && !topics.ValidName(p.Namespace) {
		return exitErrorf(misused, "--namespace: %q is no name", p.Namespace)
	}
	if (p.User == "") != (p.Password+p.PasswordFile == "") {
		return exitErrorf(misused, "--user and --password-file belong together")
	}
	_, err1 := p.password()
	_, err2 := p.bearerToken()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	_, err := p.tlsConfig()
	return err
}

func newContext() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "Remember hubs by name, and choose the current one",
		Long: `A context is a name for a hub: its addresses, a namespace, and a certificate, a user or a token. Contexts are kept in a
kubeconfig, so kubectl has the same ones: the file ~/.kube/config, or the files that $KUBECONFIG lists.
edgebus keeps the hub's MQTT address in an extension of the cluster (` + mqttExtension + `), which kubectl leaves alone.

A command talks to --server, else $EDGEBUS_SERVER, else the context that --context or $EDGEBUS_CONTEXT name, else the
current one, else http://127.0.0.1:8080.

A context's certificate and password are for the addresses that it names. Another address is sent only credentials that
are given with it.`,
		Example: "  edgebus context set plant --server https://hub.example.org:8443 --ca ca.pem --cert ann.pem --key ann.key --use\n" +
			"  edgebus context set plant --server https://hub.example.org:8443 --ca-hash sha256:1f3c… --token-file ann.token --use\n" +
			"  edgebus context list\n  edgebus get devices --context plant\n  kubectl get devices --context plant",
	}
	cmd.AddCommand(newContextSet(), newContextUse(), newContextList(), newContextDelete())
	return cmd
}

func newContextSet() *cobra.Command {
	var a access
	var use bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Add a context, or change parts of one",
		Long: `Add a context, or change what the flags name: of the context, and of its cluster and user (by default those of the
same name). Everything else in the kubeconfig stays as it is. Certificates and keys are kept by their files' names; the password
is copied from its file, because kubectl reads none from a file. Only you can read the kubeconfig.

With --ca-hash no file has to be brought from the hub: the hub is asked for its authority's certificate, which is kept in the kubeconfig
if it has that fingerprint. edgebus authority prints the fingerprint on the hub.

If there is no current context, this one becomes it.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeContexts,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.checkAddresses(); err != nil {
				return err
			}
			k, err := readKubeconfig()
			if err != nil {
				return err
			}
			if err := a.store(cmd, k, args[0]); err != nil {
				return err
			}
			if use || k.current() == "" {
				if err := k.setCurrent(args[0]); err != nil {
					return err
				}
			}
			return k.write()
		},
	}
	a.credentialFlags(cmd, "server", "mqtt")
	a.namespaceFlag(cmd)
	cmd.Flags().StringVar(&a.caHash, "ca-hash", "", caHashUsage)
	cmd.Flags().BoolVar(&use, "use", false, "make it the current context")
	return cmd
}

// store changes a context, its cluster and its user as the flags say, and checks the result.
func (a *access) store(cmd *cobra.Command, k *kubeconfig, name string) error {
	names, err := k.entryNames(name)
	if err != nil {
		return err
	}
	c, err := k.change(kindContext, name)
	if err != nil {
		return err
	}
	password, err := a.identity.Secret()
	if err != nil {
		return err
	}
	for _, x := range []struct {
		kind, flag, field, value string
		file                     bool
	}{
		{kindContext, "namespace", "namespace", a.namespace, false},
		{kindCluster, "server", "server", a.http, false},
		{kindCluster, "mqtt", "", a.mqtt, false},
		{kindCluster, "ca", "certificate-authority", a.tls.CA, true},
		{kindUser, "cert", "client-certificate", a.tls.Cert, true},
		{kindUser, "key", "client-key", a.tls.Key, true},
		{kindUser, "user", "username", a.identity.User, false},
		{kindUser, "password-file", "password", password, false},
		{kindUser, "token-file", "tokenFile", a.tokenFile, true},
	} {
		if !cmd.Flags().Changed(x.flag) {
			continue
		}
		fields, err := k.change(x.kind, names[x.kind])
		if err != nil {
			return err
		}
		if x.kind != kindContext {
			c[x.kind] = names[x.kind]
		}
		if x.file {
			delete(fields, x.field+"-data")
			if x.value != "" {
				if x.value, err = filepath.Abs(x.value); err != nil {
					return err
				}
			}
		}
		if x.field == "" {
			setMQTT(c, "") // which would take precedence over the cluster's
			setMQTT(fields, x.value)
			continue
		}
		setField(fields, x.field, x.value, x.value != "")
	}
	if a.caHash != "" {
		if a.tls.CA != "" {
			return exitErrorf(misused, "--ca and --ca-hash both say which authority signs the hub's certificate: give one of them")
		}
		if err := k.pinAuthority(cmd.Context(), name, a.caHash); err != nil {
			return err
		}
	}
	p, err := k.targetOf(name)
	if err != nil {
		return err
	}
	return p.validate()
}

func newContextUse() *cobra.Command {
	return &cobra.Command{
		Use:               "use NAME",
		Short:             "Make a context the current one",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeContexts,
		RunE:              changeContext((*kubeconfig).setCurrent),
	}
}

func newContextList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List contexts; the current one is marked *",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := readKubeconfig()
			if err != nil {
				return err
			}
			rows := [][]string{{"", "NAME", "SERVER", "MQTT", "NAMESPACE"}}
			for _, name := range k.contexts() {
				p, err := k.targetOf(name)
				if err != nil {
					printWarning(cmd.ErrOrStderr(), err.Error())
				}
				mark := ""
				if name == k.current() {
					mark = "*"
				}
				rows = append(rows, []string{mark, name, p.Server, p.MQTT, p.Namespace})
			}
			return new(alignedRows).write(cmd.OutOrStdout(), rows)
		},
	}
}

func newContextDelete() *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Short:             "Delete a context, and its cluster and user if no other context has them",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeContexts,
		RunE:              changeContext((*kubeconfig).deleteContext),
	}
}

// changeContext changes the kubeconfig for a context that it has.
func changeContext(change func(k *kubeconfig, name string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		k, err := readKubeconfig()
		if err != nil {
			return err
		}
		if !slices.Contains(k.contexts(), args[0]) {
			return k.errNoContext(args[0])
		}
		if err := change(k, args[0]); err != nil {
			return err
		}
		return k.write()
	}
}

func newKubeconfig() *cobra.Command {
	var a access
	var embed bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print a kubeconfig of one hub, to be given away",
		Long: `Print a kubeconfig that has one context: the current one, or what flags say. It is for another place: here kubectl
has edgebus' contexts without it. A user's password is in it: keep it as safe as that. kubectl sends it over https only.`,
		Example: "  edgebus kubeconfig --context plant --embed > plant.kubeconfig\n  kubectl --kubeconfig plant.kubeconfig get devices",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := a.resolve()
			if err == nil {
				err = p.validate()
			}
			if err != nil {
				return err
			}
			config, err := p.kubeconfig(cmp.Or(a.context, "edgebus"), embed)
			if err != nil {
				return err
			}
			return printDocument(cmd.OutOrStdout(), "yaml", config)
		},
	}
	a.flags(cmd, "server", "")
	a.namespaceFlag(cmd)
	cmd.Flags().BoolVar(&embed, "embed", false, "put the certificates and the key into it, instead of their files' names")
	return cmd
}

// kubeconfig is a kubeconfig with this hub alone.
func (p hubTarget) kubeconfig(name string, embed bool) (config map[string]any, err error) {
	if p.Password, err = p.password(); err != nil {
		return nil, err
	}
	if embed {
		if p.Token, err = p.bearerToken(); err != nil {
			return nil, err
		}
		p.TokenFile = ""
	}
	for _, x := range []struct {
		file *string
		data *[]byte
	}{{&p.CA, &p.CAData}, {&p.Cert, &p.CertData}, {&p.Key, &p.KeyData}} {
		if embed {
			if *x.data, err = readUnlessGiven(*x.data, *x.file); err != nil {
				return nil, err
			}
		}
		if len(*x.data) > 0 {
			*x.file = ""
		}
	}
	var hub map[string]any
	if err := convertJSON(p.cluster, &hub); err != nil {
		return nil, err
	}
	setMQTT(hub, p.MQTT)
	return map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []any{map[string]any{"name": name, kindCluster: hub}},
		"users":    []any{map[string]any{"name": name, kindUser: p.user}},
		"contexts": []any{map[string]any{
			"name": name, kindContext: map[string]any{"cluster": name, "user": name, "namespace": p.Namespace},
		}},
	}, nil
}
