package cloud

import (
	"cmp"
	"crypto/tls"
	"net"
	"os"
	"slices"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/configs"
)

// openAuthority opens the hub's authority, and has the listeners use its certificate for which none is configured.
func openAuthority(cfg *configs.Hub, log zerolog.Logger) (*enroll.Authority, error) {
	given := cfg.Auth.Authority
	authority, err := enroll.OpenAuthority(enroll.AuthorityOptions{
		Dir: cfg.Data.Dir, Cert: given.Cert, Key: given.Key, Names: cfg.Hub.Address, NodeValidity: given.NodeValidity, Log: log,
	})
	if err != nil {
		return nil, err
	}
	cfg.MQTT.TLS.Own = func(clientCA []byte) *tls.Config { return authority.TLS(clientCA) }
	cfg.HTTP.TLS.Own = func(clientCA []byte) *tls.Config { return authority.TLS(clientCA, "h2", "http/1.1") }
	return authority, nil
}

// reserved says which names are users', and so can't be nodes'.
func reserved(a configs.HubAuth) func(name string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(a.Users, func(u configs.User) bool { return u.Name == name && u.Role != "node" })
	}
}

// address is where nodes reach the hub over TLS; empty if they can't. bound are the broker's addresses, in the order
// of the configuration.
func address(cfg configs.Hub, bound []net.Addr) string {
	if cfg.MQTT.TLS.Listen == "" {
		return ""
	}
	at := 0
	if cfg.MQTT.Listen != "" {
		at = 1
	}
	host, port, _ := net.SplitHostPort(bound[at].String()) // a listener's address
	if len(cfg.Hub.Address) > 0 {
		first := cfg.Hub.Address[0]
		if _, _, err := net.SplitHostPort(first); err == nil {
			return first
		}
		return net.JoinHostPort(first, port)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		name, _ := os.Hostname() // without one the address of this host is as good
		host = cmp.Or(name, "localhost")
	}
	return net.JoinHostPort(host, port)
}
