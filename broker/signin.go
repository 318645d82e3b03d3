package broker

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/topics/resource"
)

// SignIn says who sends an HTTP request, by the rules for who connects over MQTT: a user's name and
// password, else the certificate of the connection, else anybody of this host over a plain
// connection of the loopback interface. Wrong passwords of both count together,
// and so do connections and requests that are under way.
// A request that is not let in is logged, of a flood not each.
func (b *Broker) SignIn(r *http.Request) (Identity, error) {
	id, err := b.signIn(r)
	if err == nil {
		return id, nil
	}
	user, _, named := r.BasicAuth()
	level := zerolog.WarnLevel
	if cert := verified(r.TLS); !named && cert != nil {
		user = cert.Subject.CommonName
	} else if !named {
		level = zerolog.InfoLevel // such as a browser's first request
	}
	b.strangers.WithLevel(level).Err(err).Str("user", clipped(user)).Str("remote", r.RemoteAddr).
		Str("method", r.Method).Str("path", clipped(r.URL.Path)).Msg("HTTP request refused: not signed in")
	return id, err
}

// clipped keeps what a stranger sends from filling the log.
func clipped(text string) string {
	const most = 128
	if len(text) > most {
		text = text[:most] + "…"
	}
	return validText(text)
}

func (b *Broker) signIn(r *http.Request) (Identity, error) {
	remote := addrOf(r)
	here := r.TLS == nil && loopbackAddr(remote) && loopbackAddr(localAddr(r))
	shown := credentials{loopback: here && namesLoopback(r.Host)}
	if user, password, ok := r.BasicAuth(); ok {
		shown.user, shown.password, shown.hasPass = user, []byte(password), true
	}
	shown.cert = verified(r.TLS)
	expires := time.Time{} // of the certificate, if that is what counts
	if shown.named() {
		if expires = shown.cert.NotAfter; b.opts.Now().After(expires) { // since the connection was made
			return Identity{}, resource.Errorf(resource.Unauthorized, "", "the certificate of %s has expired", validText(shown.cert.Subject.CommonName))
		}
	}
	id, code, why := b.identify(remote, shown)
	switch {
	case code == codeServerBusy:
		return Identity{}, resource.Errorf(resource.Unavailable, "", "%s", connectReasons[code])
	case why != "":
		return Identity{}, resource.Errorf(resource.Unauthorized, "", "%s", why)
	case code == codeConnectRate:
		return Identity{}, resource.Errorf(resource.Quota, "", "%s (limits.wrongPasswords)", connectReasons[code])
	case code != codeSuccess && shown.hasPass:
		return Identity{}, resource.Errorf(resource.Unauthorized, "", "%s: users are listed in auth.users", connectReasons[code])
	case code != codeSuccess && here && len(b.auth.anonymous) > 0:
		return Identity{}, resource.Errorf(resource.Unauthorized, "", "nobody is signed in, and %.100q is no name of the loopback interface "+
			"(a web page of that name could be asking): use 127.0.0.1 or localhost, or sign in as one of auth.users", r.Host)
	case code != codeSuccess:
		return Identity{}, resource.Errorf(resource.Unauthorized, "", "nobody is signed in: "+
			"show a certificate that http.tls.clientCA has signed, or the name and password of one of auth.users")
	}
	at := seatOf(id, remote)
	if err := b.quotas.requests.Take(id.User, 1); err != nil {
		return Identity{}, err
	}
	if err := b.quotas.sit(at, seat{}); err != nil {
		b.quotas.requests.Add(id.User, -1)
		return Identity{}, err
	}
	context.AfterFunc(r.Context(), func() { // which ends with the answer
		b.quotas.stand(at)
		b.quotas.requests.Add(id.User, -1)
	})
	id.CertExpires, id.Listener, id.Remote = expires, "http", remote.String()
	return id, nil
}

// namesLoopback says whether a request was meant for the loopback interface. A page of a site whose name was made to point
// there means that site, and the browser takes the answer for the site's own. No browser leaves the name out.
func namesLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "" {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}

func addrOf(r *http.Request) net.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // the server's own word
	return net.TCPAddrFromAddrPort(at)
}

// localAddr is where the connection of a request arrived.
func localAddr(r *http.Request) net.Addr {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return at
}
