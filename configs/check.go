// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/acl"
	"github.com/edgebus/edgebus/topics/password"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

type reportFunc = func(key, format string, args ...any)

func (h *Hub) complete() (err error) {
	if h.Listen == "public" {
		if h.MQTT.TLS.Listen == "" {
			h.MQTT.TLS.Listen = ":8883"
		}
		if h.HTTP.TLS.Listen == "" {
			h.HTTP.TLS.Listen = ":8443"
		}
	}
	if h.Data.Dir == "" {
		h.Data.Dir, err = stateDir("hub")
	}
	return err
}

func (h *Hub) check(report reportFunc) {
	checkMQTT(h.MQTT, h.Insecure, true, report)
	checkHTTP(h.HTTP, h.Auth.Auth, h.Insecure, true, h.Auth.OIDC.Issuer != "", report)
	if (h.Auth.Authority.Cert == "") != (h.Auth.Authority.Key == "") {
		report("auth.authority.cert", "a certificate needs its key and a key its certificate: set both auth.authority.cert and auth.authority.key")
	}
	if v := h.Auth.Authority.NodeValidity; v < leastNodeValidity {
		report("auth.authority.nodeValidity", "%s is less than %s: a node renews its certificate when two thirds of that have passed, and is locked out if the hub can't be reached in the last third; days are sensible", v, leastNodeValidity)
	}
	h.Auth.check([]string{"operator", "viewer", "node", "controller", "enroller", "follower"}, byCertificate(h.MQTT, h.HTTP), report)
	h.Auth.checkNodes(report)
	h.Auth.OIDC.check(report)
	h.Audit.check(report)
	h.Alerts.check(report)
	h.Views.check(report)
	h.Tracing.check(report)
	if h.Store.Engine == "nats" && len(h.Store.NATS.Servers) == 0 {
		report("store.nats.servers", "is missing: with store.engine nats the log is on NATS servers, such as [nats://n1:4222]")
	}
	checkListen("store.peer.listen", h.Store.Peer.Listen, false, "", report)
	if h.Store.Engine != "files" && h.Store.Peer.Listen == "" {
		report("store.peer.listen", "is missing: hubs with a log in common reach each other there, such as :8447")
	}
	if s := h.Store.NATS.Silence; s < leastSilence {
		report("store.nats.silence", "%s is less than %s: hubs would take the log from each other whenever the servers are busy", s, leastSilence)
	}
	h.Store.NATS.TLS.check("store.nats.tls.", report)
	for i, u := range h.Auth.Users {
		if u.Local != "" {
			report(fmt.Sprintf("auth.users[%d].local", i), "user %q: a hub has no Unix socket; this is for cores", u.Name)
		}
	}
	checkLimits(h.Limits.Limits, report)
}

func (c *Core) complete() (err error) {
	if c.MQTT.Socket, err = absoluteSocket(c.MQTT.Socket); err != nil {
		return err
	}
	if c.Data.Dir == "" {
		if c.Data.Dir, err = stateDir("core"); err != nil {
			return err
		}
	}
	if c.Node.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("node.name: give one, for the host has no name: %w", err)
		}
		c.Node.Name = strings.ToLower(host)
	}
	if c.Link.User == "" {
		c.Link.User = "node/" + c.Node.Name
	}
	return nil
}

func (c *Core) check(report reportFunc) {
	checkMQTT(c.MQTT.MQTT, c.Insecure, false, report)
	if len(c.MQTT.Socket) > maxSocketPath {
		report("mqtt.socket", "the path of a Unix socket has %d bytes at most, and %s has %d", maxSocketPath, c.MQTT.Socket, len(c.MQTT.Socket))
	}
	c.checkLocal(report)
	c.Audit.check(report)
	c.Alerts.check(report)
	c.Views.check(report)
	c.Tracing.check(report)
	checkHTTP(c.HTTP, c.Auth, c.Insecure, false, false, report)
	c.Link.check(report)
	c.Auth.check([]string{"operator", "viewer", "mapper", "agent", "discoverer"}, byCertificate(c.MQTT.MQTT, c.HTTP), report)
	checkLimits(c.Limits.Limits, report)
}

// leastSilence is what the servers may take for an append now and then, on disks that are busy.
const leastSilence = 500 * time.Millisecond

// leastNodeValidity is the shortest life of a node's certificate: in its last third the hub may be restarted, or the network be away for a while, and
// a clock may be wrong by some minutes, before the node is locked out.
const leastNodeValidity = time.Hour

// checkLocal wants a socket for users of this host, and one user for each.
func (c *Core) checkLocal(report reportFunc) {
	seen := map[string]string{}
	for i, u := range c.Auth.Users {
		key := fmt.Sprintf("auth.users[%d].local", i)
		switch {
		case u.Local == "" && u.Role == "agent":
			report(key, "is missing: user %q has the role agent, which only programs of this host have, at the Unix socket", u.Name)
			continue
		case u.Local == "":
			continue
		case c.MQTT.Socket == "":
			report(key, "user %q: there is no Unix socket to sign in at (mqtt.socket)", u.Name)
		case seen[u.Local] != "":
			report(key, "user %q: %s signs in as %q already", u.Name, u.Local, seen[u.Local])
		}
		seen[u.Local] = u.Name
	}
}

func (d *Discovery) complete() (err error) {
	if d.MQTT.Socket, err = absoluteSocket(d.MQTT.Socket); err != nil {
		return err
	}
	if d.Data.Dir == "" {
		d.Data.Dir, err = stateDir("discovery")
	}
	if d.Handlers.Dir == Auto && err == nil {
		d.Handlers.Dir = HandlersDir
		if !isWritableDir(d.Handlers.Dir) && !isWritableDir(filepath.Dir(d.Handlers.Dir)) {
			d.Handlers.Dir, err = filepath.Abs(filepath.Join(d.Data.Dir, "sockets"))
		}
	}
	return err
}

// HandlersDir is where discovery handlers look for edgediscovery, unless they are told.
const HandlersDir = "/run/edgediscovery"

// registrationSocket is the longest name of a socket in handlers.dir that is known.
const registrationSocket = "/agent-registration.sock"

func (d *Discovery) check(report reportFunc) {
	if !path.IsAbs(d.Handlers.Dir) || len(d.Handlers.Dir) > maxSocketPath-len(registrationSocket) {
		report("handlers.dir", "%q is neither auto nor an absolute path of at most %d bytes", d.Handlers.Dir, maxSocketPath-len(registrationSocket))
	}
	if t := d.TCP.TLS; t != (TLSClient{}) && (t.CA == "" || t.Cert == "" || t.Key == "") {
		report("tcp.tls", "is mutual, and needs ca, cert and key")
	}
}

// absoluteSocket is the path of a socket, which may have been given from the working directory on.
func absoluteSocket(path string) (string, error) {
	if path == "" || path == Auto {
		return path, nil
	}
	return filepath.Abs(path)
}

func (a *Agent) complete() (err error) {
	if a.MQTT.Socket, err = absoluteSocket(a.MQTT.Socket); err != nil {
		return err
	}
	if a.Data.Dir == "" {
		if a.Data.Dir, err = stateDir("agent"); err != nil {
			return err
		}
	}
	if a.Upgrade.Dir == "" {
		if a.Upgrade.Dir, err = programsDir(); err != nil {
			return err
		}
	}
	if a.Upgrade.Core.Data == "" {
		a.Upgrade.Core.Data, err = stateDir("core")
	}
	if a.Upgrade.Core.Config == "" {
		named := ""
		for i, arg := range a.Upgrade.Core.Run {
			if arg == "--config" && i+1 < len(a.Upgrade.Core.Run) {
				named = a.Upgrade.Core.Run[i+1]
			} else if value, ok := strings.CutPrefix(arg, "--config="); ok {
				named = value
			}
		}
		a.Upgrade.Core.Config = File("edgecore", named)
	}
	return err
}

func (a *Agent) check(report reportFunc) {
	if t := a.Upgrade.Trial; t.Watch > t.Timeout {
		report("upgrade.trial.watch", "%s is longer than upgrade.trial.timeout, %s", t.Watch, t.Timeout)
	}
	allowed := map[string]bool{}
	for i, c := range a.Commands {
		key := fmt.Sprintf("commands[%d].", i)
		switch {
		case c.Name == "" || allowed[c.Name]:
			report(key+"name", "%q is missing or listed twice", c.Name)
		case len(c.Run) == 0 || !path.IsAbs(c.Run[0]):
			report(key+"run", "command %q: give a program by its absolute path, and its arguments: [/usr/bin/systemctl, reload, nginx]", c.Name)
		}
		allowed[c.Name] = true
	}
	for _, list := range []struct {
		key   string
		hooks []Hook
	}{
		{"hooks.beforeUpdating", a.Hooks.BeforeUpdating},
		{"hooks.afterUpdating", a.Hooks.AfterUpdating},
		{"hooks.beforeRebooting", a.Hooks.BeforeRebooting},
		{"hooks.afterRebooting", a.Hooks.AfterRebooting},
	} {
		for i, h := range list.hooks {
			h.check(fmt.Sprintf("%s[%d].", list.key, i), allowed, report)
		}
	}
	for i, c := range a.Health.Checks {
		Hook{Run: c.Run, Timeout: c.Timeout}.check(fmt.Sprintf("health.checks[%d].", i), allowed, report)
	}
	for i, argv := range a.Host.Compose {
		if len(argv) == 0 || argv[0] == "" {
			report(fmt.Sprintf("host.compose[%d]", i), "has no program")
		}
	}
	a.OS.check(report)
}

// check wants all commands or none.
func (o AgentOS) check(report reportFunc) {
	set, missing := 0, ""
	for _, c := range []struct {
		key  string
		argv []string
	}{{"status", o.Status}, {"switch", o.Switch}, {"upgrade", o.Upgrade}, {"rollback", o.Rollback}, {"reboot", o.Reboot}} {
		if len(c.argv) > 0 && c.argv[0] != "" {
			set++
		} else if missing == "" {
			missing = c.key
		}
	}
	if set > 0 && missing != "" {
		report("os."+missing, "is missing: give status, switch, upgrade, rollback and reboot, or none of them")
	}
	for _, c := range []struct {
		key  string
		argv []string
	}{{"download", o.Download}, {"switchDownloaded", o.SwitchDownloaded}, {"discard", o.Discard}} {
		if len(c.argv) > 0 && (c.argv[0] == "" || set == 0 || len(o.Download) == 0) {
			report("os."+c.key, "is used only with a program, with os.download and with the other commands of os")
		}
	}
}

// check wants a command that is listed.
func (h Hook) check(key string, allowed map[string]bool, report reportFunc) {
	if !allowed[h.Run] {
		report(key+"run", "%q is not listed in commands", h.Run)
	}
}

func (m *Mapper[D]) complete() error { return nil }

func (m *Mapper[D]) check(report reportFunc) {
	checkLocalServer("server", m.Server, report)
	m.Identity.check("", report)
	m.TLS.check("tls.", report)
	m.Tracing.check(report)
	if d, ok := any(m.Driver).(interface {
		Check(report func(key, format string, args ...any))
	}); ok {
		d.Check(func(key, format string, args ...any) { report("driver."+key, format, args...) })
	}
}

func (l Link) check(report reportFunc) {
	if l.Server != "" && len(l.Servers()) == 0 {
		report("link.server", "%q has no address: leave it empty if this node works alone", l.Server)
	}
	for i, s := range l.Servers() {
		checkServer("link.server", s, report)
		if slices.Contains(l.Servers()[:i], s) {
			report("link.server", "%s is there twice", redactURL(s))
		}
	}
	l.Identity.check("link.", report)
	l.TLS.check("link.tls.", report)
	if l.Keepalive < time.Second || l.Keepalive > 65535*time.Second {
		report("link.keepalive", "%s is not between 1s and 18h12m15s, which is what MQTT can say", l.Keepalive)
	}
	if l.Retry.Attempts < 0 {
		report("link.retry.attempts", "%d is less than 0, which never gives up", l.Retry.Attempts)
	}
	if l.Retry.Backoff.Max < l.Retry.Backoff.Min {
		report("link.retry.backoff.max", "%s is less than link.retry.backoff.min, %s", l.Retry.Backoff.Max, l.Retry.Backoff.Min)
	}
}

func (i Identity) check(prefix string, report reportFunc) {
	if i.Password == redactedText {
		report(prefix+"password", "%s is what --print-config shows in its place: print with --show-secrets, or fill it in", redactedText)
	}
	if i.Password != "" && i.PasswordFile != "" {
		report(prefix+"password", "give this or %spasswordFile, not both", prefix)
	}
}

func (t TLSClient) check(prefix string, report reportFunc) {
	if (t.Cert == "") != (t.Key == "") {
		report(prefix+"cert", "a certificate needs its key and a key its certificate: set both %scert and %skey", prefix, prefix)
	}
}

// byCertificate reports whether anybody can sign in with a certificate.
func byCertificate(m MQTT, h HTTP) bool { return m.TLS.ClientCA+h.TLS.ClientCA != "" }

func (a Auth) check(roles []string, byCertificate bool, report reportFunc) {
	for i, d := range a.Deny {
		d.check(fmt.Sprintf("auth.deny[%d]", i), report)
	}
	seen := map[string]bool{}
	for i, u := range a.Users {
		at := fmt.Sprintf("auth.users[%d].", i)
		if u.Name == "" {
			report(at+"name", "is missing")
		}
		if seen[u.Name] {
			report(at+"name", "%q is listed twice", u.Name)
		}
		seen[u.Name] = true
		if strings.HasPrefix(u.Name, "view-") {
			report(at+"name", "%q: users whose names begin with view- are the views of this program", u.Name)
		}
		if name, isNode := strings.CutPrefix(u.Name, "node/"); isNode {
			report(at+"name", "%q: a node's user has the node's name alone: write %q", u.Name, name)
		} else if u.Role == "node" && u.Name != "" && !topics.ValidName(u.Name) {
			report(at+"name", "%q is no node's name: use a-z, 0-9, and - or . in between", u.Name)
		}
		if u.Role == "mapper" && !slices.Contains(roles, string(u.Role)) {
			report(at+"role", "user %q: mappers sign in on their node's own broker, and the hub has nothing for them: list the user in auth.users of the node's core.yaml", u.Name)
		} else {
			checkOneOf(at+"role", string(u.Role), roles, report)
		}
		u.checkPassword(at+"passwordHash", byCertificate || u.Local != "", report)
		u.checkTopics(at, report)
	}
}

// check wants one of the three, and hexadecimal digits that can be a certificate's.
func (d Denied) check(key string, report reportFunc) {
	given := 0
	for _, s := range []string{d.Name, d.Serial, d.Fingerprint} {
		if s != "" {
			given++
		}
	}
	switch {
	case given != 1:
		report(key, "give one of name, serial and fingerprint")
	case strings.HasPrefix(d.Name, "node/"):
		report(key+".name", "%q: a node is denied by its name alone: write %q", d.Name, strings.TrimPrefix(d.Name, "node/"))
	case d.Serial != "" && NormalizeHex(d.Serial) == "":
		report(key+".serial", "%q is no hexadecimal number, such as openssl x509 -serial shows", d.Serial)
	case d.Fingerprint != "" && len(strings.ReplaceAll(d.Fingerprint, ":", "")) != 64, d.Fingerprint != "" && NormalizeHex(d.Fingerprint) == "":
		report(key+".fingerprint", "%q is not the 64 hexadecimal digits that openssl x509 -fingerprint -sha256 shows", d.Fingerprint)
	}
}

// Normalized has the numbers as they are compared.
func (d Denied) Normalized() Denied {
	d.Serial, d.Fingerprint = NormalizeHex(d.Serial), NormalizeHex(d.Fingerprint)
	return d
}

// NormalizeHex is a hexadecimal number as it is compared: without colons and leading zeros, in lower case; empty: it is none.
func NormalizeHex(s string) string {
	n, ok := new(big.Int).SetString(strings.ReplaceAll(s, ":", ""), 16)
	if !ok || n.Sign() < 0 {
		return ""
	}
	return n.Text(16)
}

// checkPassword wants a hash that passwords can be compared with. Without one the user needs a certificate.
func (u User) checkPassword(key string, byCertificate bool, report reportFunc) {
	switch {
	case u.PasswordHash == redactedText:
		report(key, "user %q: %s is what --print-config shows in its place: print with --show-secrets, or fill in the hash", u.Name, redactedText)
	case u.PasswordHash == "" && !byCertificate:
		report(key, "is missing: user %q could not sign in; only where a clientCA is set can it be left out, for users with a certificate", u.Name)
	case u.PasswordHash != "":
		if _, err := password.Parse(u.PasswordHash); err != nil {
			report(key, "user %q: %v", u.Name, err)
		}
	}
}

// checkTopics wants filters of users' own topics, for roles that have any.
func (u User) checkTopics(at string, report reportFunc) {
	for _, list := range []struct {
		name    string
		filters Filters
		access  acl.Access
		roles   []string
	}{
		{"publish", u.Publish, acl.Write, []string{"operator", "mapper"}},
		{"subscribe", u.Subscribe, acl.Read, []string{"operator", "mapper", "viewer"}},
	} {
		if len(list.filters) > 0 && !slices.Contains(list.roles, string(u.Role)) {
			report(at+list.name, "user %q: the role %s may %s no topics of users' own, and a list gives no more than the role", u.Name, u.Role, list.name+map[string]string{"subscribe": " to"}[list.name])
			continue
		}
		if err := new(acl.Rules).Limit(u.Name, list.access, list.filters); err != nil {
			report(at+list.name, "user %q: %v", u.Name, err)
		}
	}
}

// checkNodes wants it said which nodes people may see: on a hub there is no safe default.
func (a Auth) checkNodes(report reportFunc) {
	for i, u := range a.Users {
		if (u.Role == "operator" || u.Role == "viewer") && len(u.Nodes) == 0 {
			report(fmt.Sprintf("auth.users[%d].nodes", i),
				`is missing: user %q would see no node; write nodes: ["*"] for all, or globs of their names`, u.Name)
		}
	}
}

// check requires addresses that alerts can be sent to.
func (a AlertReceivers) check(report reportFunc) {
	for name, r := range map[string]AlertReceiver{"webhook": a.Webhook, "alertmanager": a.Alertmanager} {
		u, err := url.Parse(r.URL)
		switch at := "alerts." + name + "."; {
		case r.URL == "" && r.TokenFile+r.CA != "":
			report(at+"url", "is missing: the address that alerts are sent to")
		case r.URL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https"):
			report(at+"url", "%q is no address such as https://alerts.example.org:9093", redactURL(r.URL))
		case r.TokenFile != "" && u.Scheme != "https" && !IsLoopback(u.Hostname()):
			report(at+"url", "%q: a token is sent to another host over https:// only", redactURL(r.URL))
		}
	}
	switch err := topics.CheckTopic(a.Topic); {
	case a.Topic == "":
	case err != nil:
		report("alerts.topic", "%v", err)
	case strings.HasPrefix(a.Topic, "v1/") || strings.HasPrefix(a.Topic, "$"):
		report("alerts.topic", "%q is none of the users' own topics: those don't begin with v1/ or $", a.Topic)
	}
}

// check requires peers that can be reached, and topics that are the users' own.
func (v Views) check(report reportFunc) {
	h := v.HomeAssistant
	h.ViewPeer.check("views.homeAssistant.", report)
	checkViewTopic("views.homeAssistant.prefix", h.Prefix, report)
	checkViewTopic("views.homeAssistant.topic", h.Topic, report)
	if strings.HasPrefix(h.Topic+"/", h.Prefix+"/") || strings.HasPrefix(h.Prefix+"/", h.Topic+"/") {
		report("views.homeAssistant.topic", "%q and views.homeAssistant.prefix, %q: one is below the other", h.Topic, h.Prefix)
	}
	v.UNS.ViewPeer.check("views.uns.", report)
	checkViewTopic("views.uns.root", v.UNS.Root, report)
	if v.UNS.Name == "" || slices.Contains(v.UNS.Levels, "") {
		report("views.uns.levels", "a label has no name: give each level the name of a label of Devices or Nodes, and views.uns.name as well")
	}
	v.Sparkplug.ViewPeer.check("views.sparkplug.", report)
	if rule := sparkplug.CheckID(v.Sparkplug.Group); rule != "" {
		report("views.sparkplug.group", "%q %s", v.Sparkplug.Group, rule)
	}
	if host := v.Sparkplug.PrimaryHost; host != "" && sparkplug.CheckID(host) != "" {
		report("views.sparkplug.primaryHost", "%q %s", host, sparkplug.CheckID(host))
	}
}

func (p ViewPeer) check(prefix string, report reportFunc) {
	p.TLS.check(prefix+"tls.", report)
	u, err := url.Parse(p.Server)
	switch {
	case p.Server == "" && p.User+p.PasswordFile+p.ClientID+p.TLS.CA+p.TLS.Cert != "":
		report(prefix+"server", "is missing: at its own broker the program needs no user, password or certificate")
	case p.Server == "":
	case err != nil || u.Host == "" || !slices.Contains([]string{"mqtt", "mqtts", "ws", "wss"}, u.Scheme) || u.User != nil:
		report(prefix+"server", "%q is no address such as mqtts://homeassistant.local:8883", redactURL(p.Server))
	}
}

func checkViewTopic(key, topic string, report reportFunc) {
	switch err := topics.CheckTopic(topic); {
	case topic == "":
		report(key, "is missing")
	case err != nil:
		report(key, "%v", err)
	case topic == "v1" || strings.HasPrefix(topic, "v1/") || strings.HasPrefix(topic, "$"):
		report(key, "%q is none of the users' own topics: those don't begin with v1/ or $", topic)
	}
}

// check requires a provider with a valid address, and groups that give a role.
func (o OIDC) check(report reportFunc) {
	if o.Issuer == "" {
		if o.Audience+o.CA+o.ClientSecretFile+o.RedirectURL != "" || len(o.Groups) > 0 {
			report("auth.oidc.issuer", "is missing: the URL of the OpenID Connect provider")
		}
		return
	}
	u, err := url.Parse(o.Issuer)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		report("auth.oidc.issuer", "%q is no URL of a provider, such as https://login.example.org", redactURL(o.Issuer))
	case u.Scheme != "https" && !(u.Scheme == "http" && IsLoopback(u.Hostname())):
		report("auth.oidc.issuer", "%q: a provider outside this host is asked over https:// only", o.Issuer)
	}
	if back, err := url.Parse(o.RedirectURL); o.RedirectURL != "" && (err != nil || back.Host == "" || back.Path != "/auth/oidc/callback" || back.Scheme != "https" && !(back.Scheme == "http" && IsLoopback(back.Hostname()))) {
		report("auth.oidc.redirectURL", "%q is no address of this hub to which a provider leads back, such as https://hub.example.org/auth/oidc/callback", redactURL(o.RedirectURL))
	}
	for field, value := range map[string]string{"audience": o.Audience, "userClaim": o.UserClaim, "groupsClaim": o.GroupsClaim} {
		if value == "" {
			report("auth.oidc."+field, "is missing")
		}
	}
	if len(o.Groups) == 0 {
		report("auth.oidc.groups", `is missing: nobody would have a role; write [{group: admins, role: operator, nodes: ["*"]}]`)
	}
	for i, g := range o.Groups {
		at := fmt.Sprintf("auth.oidc.groups[%d].", i)
		if len(g.Nodes) == 0 && g.Role != "controller" {
			report(at+"nodes", `is missing: the group %q would see no node; write nodes: ["*"] for all, or globs of their names`, g.Group)
		}
	}
}

func checkLimits(l Limits, report reportFunc) {
	if l.KeepAlive < 0 || l.KeepAlive > 0 && l.KeepAlive < time.Second || l.KeepAlive > 65535*time.Second {
		report("limits.keepAlive", "%s is neither 0 nor from 1s to 18h12m15s, which MQTT can say", l.KeepAlive)
	}
	if l.Commands.Longest < l.Commands.Timeout {
		report("limits.commands.longest", "%s is less than limits.commands.timeout, %s", l.Commands.Longest, l.Commands.Timeout)
	}
	// The link's own messages are up to 256 KiB, whatever users need.
	if l.Packet > 0 && l.Packet < 512<<10 {
		report("limits.packet", "%s is less than the 512KiB that the link needs", l.Packet)
	}
}

// checkMQTT checks a broker's listeners. own says that the program has a certificate of its own where none is given.
func checkMQTT(m MQTT, insecure, own bool, report reportFunc) {
	checkListen("mqtt.listen", m.Listen, !insecure, "mqtt.tls.listen", report)
	m.TLS.check("mqtt.tls.", own, report)
	checkListen("mqtt.websocket.listen", m.WebSocket.Listen, !insecure && !m.WebSocket.TLS, "mqtt.websocket.tls", report)
	if m.WebSocket.Listen != "" && m.WebSocket.TLS && !own && (m.TLS.Cert == "" || m.TLS.Key == "") {
		report("mqtt.websocket.tls", "needs mqtt.tls.cert and mqtt.tls.key")
	}
}

// checkHTTP checks the listeners of an API. own is as for checkMQTT; oidc says that people may sign in with a provider's tokens.
func checkHTTP(h HTTP, a Auth, insecure, own, oidc bool, report reportFunc) {
	checkListen("http.listen", h.Listen, !insecure, "http.tls.listen", report)
	h.TLS.check("http.tls.", own, report)
	hasPassword := func(u User) bool { return u.PasswordHash != "" }
	if oidc || own && h.TLS.Cert == "" {
		return // nodes sign in with certificates of the hub's authority, and people may be added later
	}
	if h.TLS.Listen != "" && h.TLS.ClientCA == "" && !slices.ContainsFunc(a.Users, hasPassword) {
		report("http.tls.clientCA", "is missing, and nobody in auth.users has a password: nobody could sign in")
	}
}

func (t TLSListener) check(prefix string, own bool, report reportFunc) {
	checkListen(prefix+"listen", t.Listen, false, "", report)
	if t.Listen != "" && (t.Cert == "" || t.Key == "") && !(own && t.Cert == t.Key) {
		report(prefix+"listen", "needs %scert and %skey", prefix, prefix)
	}
}

// checkListen wants host:port, and loopback where only loopback may be plain.
func checkListen(key, address string, loopback bool, instead string, report reportFunc) {
	if address == "" {
		return
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		report(key, "%q is not host:port", address)
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		report(key, "%q has no port from 0 to 65535", address)
	} else if loopback && !IsLoopback(host) {
		report(key, "%s would be open to other hosts without TLS; use 127.0.0.1:%d, or %s, or allow it with insecure: true", address, n, instead)
	}
}

// IsLoopback is whether only this host can reach host. A name counts only if it
// means loopback everywhere: others are resolved by people we don't know.
func IsLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// checkLocalServer also takes the Unix socket of a core.
func checkLocalServer(key, server string, report reportFunc) {
	if path, ok := strings.CutPrefix(server, "unix://"); !ok {
		checkServer(key, server, report)
	} else if !strings.HasPrefix(path, "/") {
		report(key, "%q: a Unix socket is unix:// and an absolute path, such as unix:///run/edgebus/mqtt.sock", server)
	}
}

func checkServer(key, server string, report reportFunc) {
	u, err := url.Parse(server)
	if err != nil || (u.Scheme != "mqtt" && u.Scheme != "mqtts") || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" {
		report(key, "%q is not mqtt://host:port or mqtts://host:port", redactURL(server))
	}
}

// redactURL keeps a password that was put where none belongs out of the message.
func redactURL(s string) string {
	if u, err := url.Parse(s); err == nil {
		return u.Redacted()
	}
	return s
}

func checkOneOf(key, value string, choice []string, report reportFunc) {
	if !slices.Contains(choice, value) {
		report(key, "%q is not one of %s", value, strings.Join(choice, ", "))
	}
}
