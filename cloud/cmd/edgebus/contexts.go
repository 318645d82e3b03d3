package main

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// place is a hub, and how to talk to it.
type place struct {
	Server    string `json:"server,omitempty"` // HTTP
	MQTT      string `json:"mqtt,omitempty"`
	CA        string `json:"ca,omitempty"`
	Cert      string `json:"cert,omitempty"`
	Key       string `json:"key,omitempty"`
	User      string `json:"user,omitempty"`
	Password  string `json:"passwordFile,omitempty"` // a file's name
	Namespace string `json:"namespace,omitempty"`
}

// contexts is the file in which people keep their hubs.
type contexts struct {
	Current string            `json:"current,omitempty"`
	Places  map[string]*place `json:"contexts,omitempty"`
	path    string
}

// readContexts reads the file; without one there are no contexts.
func readContexts() (*contexts, error) {
	c := &contexts{Places: map[string]*place{}}
	dir, err := os.UserConfigDir()
	if err != nil {
		return c, nil // nobody's home: nothing is kept there
	}
	c.path = filepath.Join(dir, "edgebus", "config.yaml")
	text, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = yaml.UnmarshalStrict(text, c)
	}
	if err != nil {
		return nil, fmt.Errorf("contexts in %s: %w", c.path, err)
	}
	return c, nil
}

// write replaces the file, at once and readable by its owner only.
func (c *contexts) write() error {
	if c.path == "" {
		return errors.New("there is no place for contexts: set HOME or XDG_CONFIG_HOME")
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o700); err != nil {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(c.path), "config-") // 0600
	if err != nil {
		return err
	}
	_, err = next.Write(text)
	if err = errors.Join(err, next.Close()); err == nil {
		err = os.Rename(next.Name(), c.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}

// pick is the context that is meant: by the flag, the environment, or the file.
func (c *contexts) pick(flag string) (place, error) {
	name := cmp.Or(flag, os.Getenv("EDGEBUS_CONTEXT"), c.Current)
	if name == "" {
		return place{}, nil
	}
	p := c.Places[name]
	if p == nil {
		return place{}, c.unknown(name)
	}
	return *p, nil
}

func (c *contexts) unknown(name string) error {
	return withCode(notFound, "there is no context %s; make it with edgebus context set %s --server http://…", name, name)
}

// meant is the context that a command is for. What names no hub is about this machine's.
func meant(flag string) (place, error) {
	c, err := readContexts()
	if err != nil {
		return place{}, err
	}
	p, err := c.pick(flag)
	if err != nil {
		return place{}, err
	}
	p.Server = cmp.Or(p.Server, defaultServer)
	if p.Server == defaultServer {
		p.MQTT = cmp.Or(p.MQTT, defaultMQTT)
	}
	return p, nil
}

// at is the place when it is asked at these addresses. A context's user, password and certificate
// are for the addresses that it names: any other gets none of them.
func (p place) at(server, mqtt string) place {
	if !sameAddress(server, p.Server) || !sameAddress(mqtt, p.MQTT) {
		p.User, p.Password, p.Cert, p.Key = "", "", "", ""
	}
	p.Server, p.MQTT = server, mqtt
	return p
}

func sameAddress(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// fill adds what the place says to what flags say: for commands that talk MQTT, too.
func (p place) fill(secure *configs.TLSClient, who *configs.Identity) {
	secure.CA, secure.Cert, secure.Key = cmp.Or(secure.CA, p.CA), cmp.Or(secure.Cert, p.Cert), cmp.Or(secure.Key, p.Key)
	who.User, who.PasswordFile = cmp.Or(who.User, p.User), cmp.Or(who.PasswordFile, p.Password)
}

// checkMQTT says why a broker isn't to be asked: nobody knows where it is, or the password would be seen on the way.
func checkMQTT(server string, who configs.Identity) error {
	if server == "" {
		return resource.Errorf(resource.Invalid, "server", "the context has no MQTT address: give it one (edgebus context set NAME --mqtt mqtts://…), or --server")
	}
	u, err := url.Parse(server)
	if err != nil || who.User == "" && u.User == nil || configs.IsLoopback(u.Hostname()) {
		return nil // the client says what is wrong with an address
	}
	if !slices.Contains([]string{"mqtts", "ssl", "tls", "wss"}, u.Scheme) {
		return resource.Errorf(resource.Invalid, "server", "the password would cross the network in the clear to %s: use mqtts://", u.Redacted())
	}
	return nil
}

func newContext() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "Remember hubs by name, and say which one is meant",
		Long: `A context is a hub's name with its addresses, a namespace, and certificates or a user's name. They are kept in
edgebus/config.yaml in $XDG_CONFIG_HOME (~/.config), readable by you only.

Which hub a command talks to: --server, else $EDGEBUS_SERVER, else the context that --context,
$EDGEBUS_CONTEXT or edgebus context use names, else http://127.0.0.1:8080.

A context's certificate and password are for the addresses that it names: another is shown those only that are
given with it.`,
		Example: "  edgebus context set plant --server https://hub.example.org:8443 --ca ca.pem --cert ann.pem --key ann.key --use\n" +
			"  edgebus context list\n  edgebus get devices --context plant",
	}
	cmd.AddCommand(newContextSet(), newContextUse(), newContextList(), newContextDelete())
	return cmd
}

func newContextSet() *cobra.Command {
	var p place
	var use bool
	cmd := &cobra.Command{
		Use:               "set NAME",
		Short:             "Make a context, or change what is given of one",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeContexts,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := readContexts()
			if err != nil {
				return err
			}
			if c.Places[args[0]] == nil {
				c.Places[args[0]] = &place{}
			}
			if err := c.Places[args[0]].take(cmd, p); err != nil {
				return err
			}
			if use || c.Current == "" {
				c.Current = args[0]
			}
			return c.write()
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.Server, "server", "", "the hub's HTTP address, such as https://hub.example.org:8443")
	f.StringVar(&p.MQTT, "mqtt", "", "the hub's MQTT address, such as mqtts://hub.example.org:8883: for edgebus tree and doctor")
	f.StringVar(&p.CA, "ca", "", "file with the certificates of those who sign the hub's")
	f.StringVar(&p.Cert, "cert", "", "file with the certificate to show")
	f.StringVar(&p.Key, "key", "", "file with the key of that certificate")
	f.StringVar(&p.User, "user", "", "name to sign in with")
	f.StringVar(&p.Password, "password-file", "", "file that holds the password")
	f.StringVarP(&p.Namespace, "namespace", "n", "", "namespace that is meant when none is given")
	f.BoolVar(&use, "use", false, "and use it from now on")
	return cmd
}

// take changes what was given on the command line.
func (p *place) take(cmd *cobra.Command, given place) error {
	for flag, field := range map[string]struct{ to, from *string }{
		"server": {&p.Server, &given.Server}, "mqtt": {&p.MQTT, &given.MQTT}, "namespace": {&p.Namespace, &given.Namespace},
		"ca": {&p.CA, &given.CA}, "cert": {&p.Cert, &given.Cert}, "key": {&p.Key, &given.Key},
		"user": {&p.User, &given.User}, "password-file": {&p.Password, &given.Password},
	} {
		if !cmd.Flags().Changed(flag) {
			continue
		}
		*field.to = *field.from
		if slices.Contains([]string{"ca", "cert", "key", "password-file"}, flag) && *field.from != "" {
			path, err := filepath.Abs(*field.from)
			if err != nil {
				return err
			}
			*field.to = path
		}
	}
	return p.check()
}

func (p *place) check() error {
	for _, a := range []struct{ flag, address, example string }{
		{"--server", p.Server, "https://hub.example.org:8443"}, {"--mqtt", p.MQTT, "mqtts://hub.example.org:8883"},
	} {
		if u, err := url.Parse(a.address); a.address != "" && (err != nil || u.Scheme == "" || u.Host == "") {
			return withCode(misused, "%s: %q is no address; it looks like %s", a.flag, a.address, a.example)
		}
	}
	if err := errors.Join(forHTTP("--server", p.Server, ""), forMQTT("--mqtt", p.MQTT, "")); err != nil {
		return withCode(misused, "%w", err)
	}
	if p.Namespace != "" && !topics.ValidName(p.Namespace) {
		return withCode(misused, "--namespace: %q is no name", p.Namespace)
	}
	if (p.User == "") != (p.Password == "") {
		return withCode(misused, "--user and --password-file belong together")
	}
	if _, err := p.identity().Secret(); err != nil {
		return err
	}
	_, err := configs.TLSClient{CA: p.CA, Cert: p.Cert, Key: p.Key}.Config()
	return err
}

// forMQTT refuses an HTTP address where an MQTT one is meant: the flags of commands that take both are easily mixed up.
func forMQTT(flag, address, hint string) error {
	if scheme, _, _ := strings.Cut(strings.ToLower(address), "://"); scheme == "http" || scheme == "https" {
		return fmt.Errorf("%s: %q is an HTTP address%s. An MQTT one looks like %s", flag, address, hint, defaultMQTT)
	}
	return nil
}

// forHTTP is forMQTT the other way round.
func forHTTP(flag, address, hint string) error {
	if scheme, _, _ := strings.Cut(strings.ToLower(address), "://"); slices.Contains([]string{"mqtt", "mqtts", "ws", "wss", "tcp"}, scheme) {
		return fmt.Errorf("%s: %q is an MQTT address%s. An HTTP one looks like %s", flag, address, hint, defaultServer)
	}
	return nil
}

// identity is how to sign in with a password.
func (p *place) identity() configs.Identity {
	return configs.Identity{User: p.User, PasswordFile: p.Password}
}

func newContextUse() *cobra.Command {
	return &cobra.Command{
		Use:               "use NAME",
		Short:             "Say which context is meant from now on",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeContexts,
		RunE:              changeContext(func(c *contexts, name string) { c.Current = name }),
	}
}

func newContextList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List contexts; the one that is used has a *",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := readContexts()
			if err != nil {
				return err
			}
			rows := [][]string{{"", "NAME", "SERVER", "MQTT", "NAMESPACE"}}
			for _, name := range slices.Sorted(maps.Keys(c.Places)) {
				p, mark := c.Places[name], ""
				if name == c.Current {
					mark = "*"
				}
				rows = append(rows, []string{mark, name, p.Server, p.MQTT, p.Namespace})
			}
			return new(grid).write(cmd.OutOrStdout(), rows)
		},
	}
}

func newContextDelete() *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Short:             "Forget a context",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeContexts,
		RunE: changeContext(func(c *contexts, name string) {
			delete(c.Places, name)
			if c.Current == name {
				c.Current = ""
			}
		}),
	}
}

// changeContext changes what is written of a context that there is.
func changeContext(change func(c *contexts, name string)) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		c, err := readContexts()
		if err != nil {
			return err
		}
		if c.Places[args[0]] == nil {
			return c.unknown(args[0])
		}
		change(c, args[0])
		return c.write()
	}
}

func newKubeconfig() *cobra.Command {
	var h hub
	var embed bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print a configuration for kubectl",
		Long: `Print a kubeconfig with which kubectl, k9s and everything else that is made for Kubernetes talks to
the hub: the address, namespace, certificates and user of a context, or of flags. A user's password
is in it, for kubectl reads none from a file: keep it as safe as that. kubectl sends it over https only.

On the hub's own machine kubectl needs none if its HTTP port is 8080.`,
		Example: "  edgebus kubeconfig > edgebus.kubeconfig\n  kubectl --kubeconfig edgebus.kubeconfig get devices",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := h.place()
			if err == nil {
				err = p.check()
			}
			if err != nil {
				return err
			}
			config, err := p.kubeconfig(cmp.Or(h.context, "edgebus"), embed)
			if err != nil {
				return err
			}
			return printDocument(cmd.OutOrStdout(), "yaml", config)
		},
	}
	h.placeFlags(cmd)
	cmd.Flags().BoolVar(&embed, "embed", false, "put the certificates and the key into it, instead of their files' names")
	return cmd
}

// kubeconfig is a place as kubectl wants it.
func (p place) kubeconfig(name string, embed bool) (map[string]any, error) {
	cluster, user := map[string]any{"server": p.Server}, map[string]any{}
	for _, file := range []struct {
		to          map[string]any
		field, path string
	}{{cluster, "certificate-authority", p.CA}, {user, "client-certificate", p.Cert}, {user, "client-key", p.Key}} {
		switch {
		case file.path == "":
		case embed:
			text, err := os.ReadFile(file.path)
			if err != nil {
				return nil, err
			}
			file.to[file.field+"-data"] = base64.StdEncoding.EncodeToString(text)
		default:
			file.to[file.field] = file.path
		}
	}
	if p.User != "" {
		password, err := p.identity().Secret()
		if err != nil {
			return nil, err
		}
		user["username"], user["password"] = p.User, password
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []any{map[string]any{"name": name, "cluster": cluster}},
		"users":    []any{map[string]any{"name": name, "user": user}},
		"contexts": []any{map[string]any{
			"name": name, "context": map[string]any{"cluster": name, "user": name, "namespace": p.Namespace},
		}},
	}, nil
}
