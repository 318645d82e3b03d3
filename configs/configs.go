// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/term"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/acl"
	"github.com/edgebus/edgebus/topics/limits"
)

// Hub is what cloudhub can be told. hub.yaml says what each setting means.
type Hub struct {
	Listen   string         `yaml:"listen" oneof:"loopback public"`
	Hub      HubAddress     `yaml:"hub"`
	Data     Data           `yaml:"data"`
	Store    HubStore       `yaml:"store"`
	Replaces []string       `yaml:"replaces" is:"hubID"`
	MQTT     MQTT           `yaml:"mqtt"`
	HTTP     HTTP           `yaml:"http"`
	Auth     HubAuth        `yaml:"auth"`
	Audit    Audit          `yaml:"audit"`
	Alerts   AlertReceivers `yaml:"alerts"`
	Views    Views          `yaml:"views"`
	Bridge   HubBridge      `yaml:"bridge"`
	Sources  Sources        `yaml:"sources"`
	Rules    HubRules       `yaml:"rules"`
	Log      Log            `yaml:"log"`
	Tracing  Tracing        `yaml:"tracing"`
	Limits   HubLimits      `yaml:"limits"`
	Insecure bool           `yaml:"insecure"`
}

// HubStore says where the hub's log is.
type HubStore struct {
	Engine string  `yaml:"engine" oneof:"files nats"`
	Peer   HubPeer `yaml:"peer"`
	NATS   HubNATS `yaml:"nats"`
}

// HubPeer is how the hubs of a cluster reach each other.
type HubPeer struct {
	Listen    string `yaml:"listen"`
	Advertise string `yaml:"advertise" is:"advertised"`
}

// HubNATS is the log of several hubs, which NATS servers replicate.
type HubNATS struct {
	Servers     []string      `yaml:"servers" is:"natsServer"`
	Stream      string        `yaml:"stream" is:"stream"`
	Replicas    int           `yaml:"replicas" min:"1"`
	Name        string        `yaml:"name"`
	Credentials string        `yaml:"credentials"`
	TLS         TLSClient     `yaml:"tls"`
	Monitor     []string      `yaml:"monitor" is:"monitor"`
	Trial       bool          `yaml:"trial"`
	Silence     time.Duration `yaml:"silence" min:"1"`
	Keep        time.Duration `yaml:"keep" min:"1"`
}

// Core is what edgecore can be told. core.yaml says what each setting means.
type Core struct {
	Node     NodeName       `yaml:"node"`
	Data     Data           `yaml:"data"`
	MQTT     CoreMQTT       `yaml:"mqtt"`
	HTTP     HTTP           `yaml:"http"`
	Link     Link           `yaml:"link"`
	Bridge   []Bridge       `yaml:"bridge"`
	Rules    CoreRules      `yaml:"rules"`
	Auth     Auth           `yaml:"auth"`
	Audit    Audit          `yaml:"audit"`
	Alerts   AlertReceivers `yaml:"alerts"`
	Views    Views          `yaml:"views"`
	Log      Log            `yaml:"log"`
	Tracing  Tracing        `yaml:"tracing"`
	Limits   CoreLimits     `yaml:"limits"`
	Insecure bool           `yaml:"insecure"`
}

// Agent is what edgeagent can be told. agent.yaml says what each setting means.
type Agent struct {
	MQTT     AgentMQTT    `yaml:"mqtt"`
	Data     Data         `yaml:"data"`
	Root     string       `yaml:"root" is:"path"`
	Files    AgentFiles   `yaml:"files"`
	Commands []Command    `yaml:"commands"`
	Hooks    AgentHooks   `yaml:"hooks"`
	Health   Health       `yaml:"health"`
	Host     AgentHost    `yaml:"host"`
	OS       AgentOS      `yaml:"os"`
	Upgrade  AgentUpgrade `yaml:"upgrade"`
	Log      Log          `yaml:"log"`
}

// AgentUpgrade says how the agent upgrades the core and itself.
type AgentUpgrade struct {
	Dir      string     `yaml:"dir" is:"path"`
	Keys     []string   `yaml:"keys,flow" is:"minisign"`
	Sources  []string   `yaml:"sources,flow" is:"source"`
	Settings []string   `yaml:"settings,flow" is:"glob"`
	Services []string   `yaml:"services,flow"`
	Hold     bool       `yaml:"hold"`
	Core     AgentCore  `yaml:"core"`
	Trial    AgentTrial `yaml:"trial"`
	// Probation begins when the trial is over.
	Probation AgentProbation `yaml:"probation"`
}

// AgentCore says how the core is run.
type AgentCore struct {
	Unit   string        `yaml:"unit"`
	Run    []string      `yaml:"run,flow"`
	Data   string        `yaml:"data" is:"path"`
	Config string        `yaml:"config" is:"path"`
	Stop   time.Duration `yaml:"stop" min:"1"`
}

// AgentTrial says when a new version is well.
type AgentTrial struct {
	Timeout time.Duration `yaml:"timeout" min:"1"`
	Watch   time.Duration `yaml:"watch" min:"1"`
	Memory  Size          `yaml:"memory" min:"1"`
}

// AgentProbation says how long what was before an upgrade is kept, and when it is put back.
type AgentProbation struct {
	Time time.Duration `yaml:"time" min:"0"`
	Away time.Duration `yaml:"away" min:"1"`
}

// Discovery is what edgediscovery can be told. discovery.yaml says what each setting means.
type Discovery struct {
	MQTT     AgentMQTT         `yaml:"mqtt"`
	Data     Data              `yaml:"data"`
	Handlers DiscoveryHandlers `yaml:"handlers"`
	TCP      DiscoveryTCP      `yaml:"tcp"`
	Limits   DiscoveryLimits   `yaml:"limits"`
	Log      Log               `yaml:"log"`
}

// DiscoveryHandlers says where handlers are, and which of the program's own serve.
type DiscoveryHandlers struct {
	Dir      string        `yaml:"dir"` // a path, or auto
	Embedded []string      `yaml:"embedded,flow" is:"glob"`
	Grace    time.Duration `yaml:"grace"`
}

// DiscoveryTCP says how handlers on other hosts register.
type DiscoveryTCP struct {
	Listen string    `yaml:"listen"`
	TLS    TLSClient `yaml:"tls"`
}

// DiscoveryLimits bound what handlers may find.
type DiscoveryLimits struct {
	Devices int `yaml:"devices" min:"1" max:"10000"`
}

// AgentHost says where the agent finds what runs applications. Sockets are paths, or auto.
type AgentHost struct {
	Systemd string     `yaml:"systemd" is:"autoPath"`
	Podman  string     `yaml:"podman" is:"autoPath"`
	Docker  string     `yaml:"docker" is:"autoPath"`
	Compose [][]string `yaml:"compose,flow"`
}

// AgentOS are the commands of an OS that is an image; without a status those of bootc.
type AgentOS struct {
	Status   []string `yaml:"status,flow"`
	Switch   []string `yaml:"switch,flow"`
	Upgrade  []string `yaml:"upgrade,flow"`
	Rollback []string `yaml:"rollback,flow"`
	Reboot   []string `yaml:"reboot,flow"`

	Download         []string `yaml:"download,flow"`
	SwitchDownloaded []string `yaml:"switchDownloaded,flow"`
	Discard          []string `yaml:"discard,flow"`
}

// AgentMQTT says where a program of the node finds its core.
type AgentMQTT struct {
	Socket string `yaml:"socket" is:"socket"` // a path, or auto
}

// AgentFiles says which files the agent may write.
type AgentFiles struct {
	Roots []string      `yaml:"roots,flow" is:"path"`
	Check time.Duration `yaml:"check"`
}

// Command is a program with its arguments that a spec may have run by its name.
type Command struct {
	Name string   `yaml:"name"`
	Run  []string `yaml:"run,flow"`
}

// AgentHooks are the node's own commands around every update.
type AgentHooks struct {
	BeforeUpdating  []Hook `yaml:"beforeUpdating"`
	AfterUpdating   []Hook `yaml:"afterUpdating"`
	BeforeRebooting []Hook `yaml:"beforeRebooting"`
	AfterRebooting  []Hook `yaml:"afterRebooting"`
}

// Hook runs a command, if one of its conditions holds or it has none.
type Hook struct {
	Run     string          `yaml:"run"`
	If      []HookCondition `yaml:"if,omitempty,flow"`
	Timeout string          `yaml:"timeout,omitempty" is:"timeout"`
}

// HookCondition holds if an update changes a file.
type HookCondition struct {
	Path string   `yaml:"path" is:"path"`
	Op   []string `yaml:"op,omitempty,flow" oneof:"created updated removed"`
}

// Health says when a host is well after an update.
type Health struct {
	Checks  []HealthCheck `yaml:"checks"`
	Timeout time.Duration `yaml:"timeout" min:"1"`
}

// HealthCheck is a command that succeeds when the host is well.
type HealthCheck struct {
	Run     string `yaml:"run"`
	Timeout string `yaml:"timeout,omitempty" is:"timeout"`
}

// Sockets are the addresses at which a program of the node looks for its core.
func (a AgentMQTT) Sockets() []string {
	if a.Socket != Auto {
		return []string{"unix://" + a.Socket}
	}
	dir, err := stateDir("core")
	if err != nil {
		dir = filepath.Join("/var/lib/edgebus", "core")
	}
	return []string{"unix://" + filepath.Join(RuntimeDir, SocketName), "unix://" + filepath.Join(dir, SocketName)}
}

// Mapper is what a mapper can be told, with its driver's own settings in D.
type Mapper[D any] struct {
	Server   string `yaml:"server"`
	Name     string `yaml:"name" is:"name"`
	Identity `yaml:",inline"`
	TLS      TLSClient `yaml:"tls"`
	Log      Log       `yaml:"log"`
	Tracing  Tracing   `yaml:"tracing"`
	Driver   D         `yaml:"driver"`
}

// Modbus holds the settings of the modbus driver.
type Modbus struct {
	Timeout      time.Duration `yaml:"timeout" min:"1"`
	ProbeTimeout time.Duration `yaml:"probeTimeout" min:"1"`
}

// BACnet holds the settings of the bacnet driver.
type BACnet struct {
	Listen    string        `yaml:"listen"`
	Broadcast string        `yaml:"broadcast"`
	BBMD      string        `yaml:"bbmd"`
	Timeout   time.Duration `yaml:"timeout" min:"1"`
}

// OPCUA holds the settings of the opcua driver.
type OPCUA struct {
	DataDir        string        `yaml:"dataDir"`
	CredentialsDir string        `yaml:"credentialsDir"`
	Timeout        time.Duration `yaml:"timeout" min:"1"`
}

// Directory is DataDir or, where that is empty, that of the service ($STATE_DIRECTORY), of root, or of the user.
func (o OPCUA) Directory() (string, error) {
	if dir := cmp.Or(o.DataDir, os.Getenv("STATE_DIRECTORY")); dir != "" {
		return dir, nil
	}
	return stateDir("mapper-opcua")
}

// SNMP holds the settings of the snmp driver.
type SNMP struct {
	Traps          string        `yaml:"traps"`
	CredentialsDir string        `yaml:"credentialsDir"`
	Timeout        time.Duration `yaml:"timeout" min:"1"`
}

// DMI holds the settings of the bridge for KubeEdge's mappers.
type DMI struct {
	Socket        string        `yaml:"socket"`
	Dir           string        `yaml:"dir"`
	ConfirmWithin time.Duration `yaml:"confirmWithin" min:"1"`
}

// HTTPMapper holds the settings of the http driver.
type HTTPMapper struct {
	Hooks          string        `yaml:"hooks"`
	CredentialsDir string        `yaml:"credentialsDir"`
	Timeout        time.Duration `yaml:"timeout" min:"1"`
}

// MapperMQTT holds the settings of the mqtt driver.
type MapperMQTT struct {
	Timeout       time.Duration `yaml:"timeout" min:"1"`
	SparkplugHost string        `yaml:"sparkplugHost"`
}

// Check reports which settings are wrong.
func (m MapperMQTT) Check(report func(key, format string, args ...any)) {
	if strings.ContainsAny(m.SparkplugHost, "/+#") {
		report("sparkplugHost", "%q must have no /, + and #: it is a part of a topic", m.SparkplugHost)
	}
}

// Virtual holds the settings of the virtual driver.
type Virtual struct {
	Interval time.Duration `yaml:"interval"`
}

// Data says where state is kept.
type Data struct {
	Dir string `yaml:"dir"`
}

// NodeName is the node's name in its tree, and the labels that it asks for when it joins.
type NodeName struct {
	Name      string   `yaml:"name" is:"name"`
	Labels    []string `yaml:"labels,flow" is:"label"`
	LabelFrom []string `yaml:"labelFrom,flow" is:"labelFrom"`
}

// MQTT says where a broker listens.
type MQTT struct {
	Listen    string      `yaml:"listen"`
	TLS       TLSListener `yaml:"tls"`
	WebSocket WebSocket   `yaml:"websocket"`
}

// CoreMQTT says where a core's broker listens.
type CoreMQTT struct {
	MQTT   `yaml:",inline"`
	Socket string `yaml:"socket"` // a path, auto, or empty for none
}

// Auto is the value of settings that the program chooses itself.
const Auto = "auto"

// SocketName is the name of the core's Unix socket where mqtt.socket is auto, and RuntimeDir the directory that it is in if
// the core may write there.
const (
	SocketName = "mqtt.sock"
	RuntimeDir = "/run/edgebus"
)

// maxSocketPath is how long the path of a Unix socket may be.
const maxSocketPath = 107

// SocketPath is where the core's Unix socket is; empty: there is none, and why if the settings don't say so.
func (c Core) SocketPath() (path, why string) {
	switch {
	case c.MQTT.Socket != Auto:
		return c.MQTT.Socket, ""
	case runtime.GOOS != "linux":
		return "", "this system does not identify the peer of a Unix socket"
	case isWritableDir(RuntimeDir):
		return filepath.Join(RuntimeDir, SocketName), ""
	}
	if path = filepath.Join(c.Data.Dir, SocketName); len(path) > maxSocketPath {
		return "", fmt.Sprintf("%s is longer than the %d bytes that a socket's path may have: set mqtt.socket", path, maxSocketPath)
	}
	return path, ""
}

// WebSocket says where MQTT over WebSocket is served.
type WebSocket struct {
	Listen  string   `yaml:"listen"`
	TLS     bool     `yaml:"tls"`
	Origins []string `yaml:"origins" is:"origin"` // of web pages elsewhere that may connect
	// ClientCertificates asks clients for a certificate.
	ClientCertificates bool `yaml:"clientCertificates"`
}

// HTTP says where an API listens.
type HTTP struct {
	Listen    string      `yaml:"listen"`
	Discovery string      `yaml:"discovery" oneof:"all own"`
	TLS       TLSListener `yaml:"tls"`
}

// Health is where the program that runs with these settings says whether it is ready; secure: over HTTPS.
func (h HTTP) Health() (address string, secure bool) {
	if h.Listen == "" {
		return h.TLS.Listen, true
	}
	return h.Listen, false
}

// Link says how a core reaches its hub.
type Link struct {
	Server    string `yaml:"server"`
	Identity  `yaml:",inline"`
	TLS       TLSClient     `yaml:"tls"`
	Keepalive time.Duration `yaml:"keepalive"`
	Retry     Retry         `yaml:"retry"`
	Rate      Size          `yaml:"rate"`
}

// Servers are the addresses of Server, which has commas between them; none: the node works alone.
func (l Link) Servers() (list []string) {
	for s := range strings.SplitSeq(l.Server, ",") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	return list
}

// Bridge is a rule by which users' own topics travel between a node and its hub.
type Bridge struct {
	Direction string `yaml:"direction" oneof:"up down"` // up or down
	Filter    string `yaml:"filter" is:"bridged"`
	Store     bool   `yaml:"store,omitempty"`
}

// HubRules bound what KubeEdge's Rules do.
type HubRules struct {
	Allow   []string      `yaml:"allow" is:"network"`
	Age     time.Duration `yaml:"age" min:"1"`
	Timeout time.Duration `yaml:"timeout" min:"1"`
}

// CoreRules says what KubeEdge's Rules may reach on a node.
type CoreRules struct {
	Ports []string `yaml:"ports,flow" is:"port"`
}

// Numbers are the ports, which were checked.
func (r CoreRules) Numbers() (list []int) {
	for _, text := range r.Ports {
		if n, err := strconv.Atoi(text); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// HubBridge says which of the hub's topics nodes may ask for.
type HubBridge struct {
	Down []string `yaml:"down" is:"bridged"`
}

// Retry says how a link recovers.
type Retry struct {
	Timeout  time.Duration `yaml:"timeout" min:"1"`
	Attempts int           `yaml:"attempts"`
	Backoff  Backoff       `yaml:"backoff"`
}

// Backoff bounds the pause between attempts.
type Backoff struct {
	Min time.Duration `yaml:"min" min:"1"`
	Max time.Duration `yaml:"max"`
}

// Identity is how a client signs in.
type Identity struct {
	User         string `yaml:"user"`
	Password     string `yaml:"password" secret:"true"`
	PasswordFile string `yaml:"passwordFile" file:"true"`
}

// Secret is the password, read from its file if it stands in one.
func (i Identity) Secret() (string, error) {
	if i.PasswordFile == "" {
		return i.Password, nil
	}
	text, err := os.ReadFile(i.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("passwordFile: %w", err)
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// Auth says who may come in.
type Auth struct {
	Anonymous string `yaml:"anonymous" oneof:"auto loopback never"`
	Users     []User `yaml:"users"`
	// Topics is a file of rules for users' own topics, in mosquitto's format; empty: there is none.
	Topics string `yaml:"topics" file:"true"`
	// Deny are those who are not let in, whatever they show.
	Deny []Denied `yaml:"deny"`
	// SharedGroups are globs of the shared subscriptions' groups that users have in common.
	SharedGroups []string `yaml:"sharedGroups,flow" is:"glob"`
}

// HubAuth says who may come in to the hub.
type HubAuth struct {
	Auth       `yaml:",inline"`
	Nodes      string    `yaml:"nodes" oneof:"auto registered any"`
	Enrollment string    `yaml:"enrollment" oneof:"ask token never"`
	NodeLabels []string  `yaml:"nodeLabels,flow"`
	Authority  Authority `yaml:"authority"`
	OIDC       OIDC      `yaml:"oidc"`
}

// OIDC says whom an OpenID Connect provider vouches for, and what its groups may do. Without an issuer there is none.
type OIDC struct {
	Issuer      string `yaml:"issuer"`
	Audience    string `yaml:"audience"`
	UserClaim   string `yaml:"userClaim"`
	GroupsClaim string `yaml:"groupsClaim"`
	// ClientSecretFile and RedirectURL are for sign-ins with a browser.
	ClientSecretFile string      `yaml:"clientSecretFile" file:"true"`
	RedirectURL      string      `yaml:"redirectURL"`
	CA               string      `yaml:"ca" file:"true"`
	Groups           []OIDCGroup `yaml:"groups"`
}

// OIDCGroup is what the members of a group may do.
type OIDCGroup struct {
	Group string   `yaml:"group" is:"glob"` // a glob
	Role  string   `yaml:"role" oneof:"operator viewer controller"`
	Nodes []string `yaml:"nodes,omitempty,flow" is:"glob"`
}

// AlertReceivers says who is told of alarms of devices and of conditions that are worth a look.
type AlertReceivers struct {
	Webhook      AlertReceiver `yaml:"webhook"`
	Alertmanager AlertReceiver `yaml:"alertmanager"`
	Topic        string        `yaml:"topic"`
}

// AlertReceiver is an address that alerts are sent to.
type AlertReceiver struct {
	URL       string `yaml:"url"`
	TokenFile string `yaml:"tokenFile" file:"true"`
	CA        string `yaml:"ca" file:"true"`
}

// Views are the views of devices for other systems.
type Views struct {
	HomeAssistant HomeAssistant    `yaml:"homeAssistant"`
	UNS           UnifiedNamespace `yaml:"uns"`
	Sparkplug     Sparkplug        `yaml:"sparkplug"`
}

// ViewPeer is the broker that a view speaks at.
type ViewPeer struct {
	Enabled      bool      `yaml:"enabled"`
	Server       string    `yaml:"server"` // empty: the program's own broker
	User         string    `yaml:"user"`
	PasswordFile string    `yaml:"passwordFile" file:"true"`
	ClientID     string    `yaml:"clientID"`
	TLS          TLSClient `yaml:"tls"`
	Labels       []string  `yaml:"labels,flow" is:"label"`
}

// HomeAssistant is the view for Home Assistant.
type HomeAssistant struct {
	ViewPeer `yaml:",inline"`
	Prefix   string `yaml:"prefix"`
	Topic    string `yaml:"topic"`
}

// UnifiedNamespace is the view that is a unified namespace.
type UnifiedNamespace struct {
	ViewPeer `yaml:",inline"`
	Root     string   `yaml:"root"`
	Levels   []string `yaml:"levels,flow"`
	Name     string   `yaml:"name"`
	JSON     bool     `yaml:"json"`
}

// Sparkplug is the view as edge nodes of Sparkplug B.
type Sparkplug struct {
	ViewPeer    `yaml:",inline"`
	Group       string `yaml:"group"`
	PrimaryHost string `yaml:"primaryHost"`
	Aliases     bool   `yaml:"aliases"`
}

// Secret is the password, read from its file; nil: there is none.
func (p ViewPeer) Secret() func() (string, error) {
	if p.PasswordFile == "" {
		return nil
	}
	return Identity{PasswordFile: p.PasswordFile}.Secret
}

// Authority says who signs the nodes' certificates.
type Authority struct {
	Cert         string        `yaml:"cert" file:"true"`
	Key          string        `yaml:"key" file:"true"`
	NodeValidity time.Duration `yaml:"nodeValidity"`
}

// HubAddress says by which names nodes and people reach the hub.
type HubAddress struct {
	Address []string `yaml:"address,flow" is:"host"`
}

// Denied identifies a user, node or certificate by one of these.
type Denied struct {
	Name        string `yaml:"name,omitempty"`        // of a user or node
	Serial      string `yaml:"serial,omitempty"`      // of a certificate, hexadecimal
	Fingerprint string `yaml:"fingerprint,omitempty"` // of a certificate, SHA-256, hexadecimal
}

// anybody is whether clients of a loopback listener need no password, and why.
func (a Auth) anybody(m MQTT, h HTTP, provider string) (yes bool, why string) {
	if a.Anonymous != Auto {
		return a.Anonymous == "loopback", "auth.anonymous is " + a.Anonymous
	}
	if i := slices.IndexFunc(a.Users, User.overNetwork); i >= 0 {
		return false, fmt.Sprintf("auth.users lists %s", a.Users[i].Name)
	}
	if provider != "" {
		return false, "auth.oidc names the provider " + provider
	}
	for _, listener := range []struct {
		key    string
		secure bool
	}{
		{"mqtt.tls", m.TLS.Listen != "" && m.TLS.Cert != ""},
		{"http.tls", h.TLS.Listen != "" && h.TLS.Cert != ""},
		{"mqtt.websocket", m.WebSocket.Listen != "" && m.WebSocket.TLS},
	} {
		if listener.secure {
			return false, listener.key + " has a certificate of its own"
		}
	}
	return true, "no user, no provider and no listener with a certificate of its own is configured"
}

// overNetwork reports whether a user signs in with a password or a certificate. One that is a user of this host, over the Unix
// socket, needs neither, and says nothing of who may connect over TCP.
func (u User) overNetwork() bool { return u.Local == "" || u.PasswordHash != "" }

// Anybody is whether clients of a loopback listener need no password: with auth.anonymous auto until
// a user who signs in over the network, an OpenID Connect provider, or a certificate for a listener with TLS, is configured.
func (h Hub) Anybody() bool {
	yes, _ := h.Anonymous()
	return yes
}

// Anonymous is the same, with the reason.
func (h Hub) Anonymous() (yes bool, why string) {
	return h.Auth.anybody(h.MQTT, h.HTTP, h.Auth.OIDC.Issuer)
}

// LinkAddress is where nodes reach the hub over TLS; empty if they can't. bound are the broker's addresses, in the order
// of the configuration.
func (h Hub) LinkAddress(bound []net.Addr) string {
	if h.MQTT.TLS.Listen == "" {
		return ""
	}
	at := 0
	if h.MQTT.Listen != "" {
		at = 1
	}
	host, port, _ := net.SplitHostPort(bound[at].String()) // a listener's address
	if len(h.Hub.Address) > 0 {
		first := h.Hub.Address[0]
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

// Anybody is as a hub's.
func (c Core) Anybody() bool {
	yes, _ := c.Anonymous()
	return yes
}

// Anonymous is as a hub's.
func (c Core) Anonymous() (yes bool, why string) { return c.Auth.anybody(c.MQTT.MQTT, c.HTTP, "") }

// User is a user of auth.users, with credentials and rights.
type User struct {
	Name         string      `yaml:"name"`
	PasswordHash string      `yaml:"passwordHash" secret:"true"`
	Role         topics.Role `yaml:"role"`
	Nodes        []string    `yaml:"nodes,omitempty,flow" is:"glob"`
	Devices      []string    `yaml:"devices,omitempty,flow" is:"glob"`
	Protocols    []string    `yaml:"protocols,omitempty,flow" is:"glob"`
	// Configurations are globs of those that a discoverer looks for; empty: all.
	Configurations []string `yaml:"configurations,omitempty,flow" is:"glob"`
	// Clients are globs of client identifiers that are reserved for the user.
	Clients   []string `yaml:"clients,omitempty,flow" is:"glob"`
	Local     string   `yaml:"local,omitempty"` // a user of this host, by name or number
	Publish   Filters  `yaml:"publish,omitempty,flow"`
	Subscribe Filters  `yaml:"subscribe,omitempty,flow"`
}

// Filters of topics.
type Filters = acl.Filters

// Audit says where the audit log is, and how much of it is kept.
type Audit struct {
	File  string `yaml:"file"` // a path, auto, or empty for none
	Size  Size   `yaml:"size" min:"1"`
	Files int    `yaml:"files" min:"1"`
}

// AuditName is the audit log's name in the data directory.
const AuditName = "audit.log"

// Path is the audit log's file; empty: there is none.
func (a Audit) Path(dataDir string) string {
	if a.File == Auto {
		return filepath.Join(dataDir, AuditName)
	}
	return a.File
}

func (a Audit) check(report reportFunc) {
	if a.Size < 1<<20 {
		report("audit.size", "%s is less than 1MiB", a.Size)
	}
}

// Log says how much is logged, and in which form.
type Log struct {
	Level  string `yaml:"level" oneof:"trace debug info warn error off"`
	Format string `yaml:"format" oneof:"auto pretty json"`
}

// Tracing says where traces of desired values are sent, and how many.
type Tracing struct {
	Endpoint string  `yaml:"endpoint"`
	Ratio    float64 `yaml:"ratio"`
}

func (t Tracing) check(report reportFunc) {
	u, err := url.Parse(t.Endpoint)
	if t.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		report("tracing.endpoint", "%q: must be the URL of a collector, such as http://127.0.0.1:4318", t.Endpoint)
	}
	if !(t.Ratio >= 0 && t.Ratio <= 1) { // .nan is neither
		report("tracing.ratio", "%g: must be from 0 to 1", t.Ratio)
	}
}

// Limits bound what clients can make a broker hold.
type Limits = limits.Limits

// Size is a number of bytes, or a part of the memory that there is.
type Size = limits.Size

// HubLimits bound what the hub holds.
type HubLimits struct {
	Limits  `yaml:",inline"`
	Node    NodeQuota     `yaml:"node"`
	Events  EventLimits   `yaml:"events"`
	Blobs   HubBlobs      `yaml:"blobs"`
	History HistoryLimits `yaml:"history"`
}

// CoreLimits bound what the core holds.
type CoreLimits struct {
	Limits  `yaml:",inline"`
	Node    NodeQuota     `yaml:"node"`
	Mappers int           `yaml:"mappers" min:"1"`
	Streams StreamLimits  `yaml:"streams"`
	Blobs   CoreBlobs     `yaml:"blobs"`
	History HistoryLimits `yaml:"history"`
}

// Sources are the git repositories, registries and servers that fleets refer to.
type Sources struct {
	Interval time.Duration `yaml:"interval" min:"1"`
	Allow    []string      `yaml:"allow" is:"network"`
}

// HubBlobs bound the blobs that the hub has.
type HubBlobs struct {
	Bytes Size          `yaml:"bytes" min:"1"`
	Age   time.Duration `yaml:"age" min:"1"`
}

// CoreBlobs bound the blobs that a core has downloaded.
type CoreBlobs struct {
	Bytes Size `yaml:"bytes" min:"1"`
}

// HistoryLimits bound what is kept of what properties were.
type HistoryLimits struct {
	Bytes Size `yaml:"bytes"`
}

// NodeQuota bounds what a node owns of its tree.
type NodeQuota struct {
	Keys  int  `yaml:"keys" min:"1"`
	Bytes Size `yaml:"bytes" min:"1"`
}

// StreamLimits bound what waits for the link.
type StreamLimits struct {
	Bytes Size          `yaml:"bytes" min:"1"`
	Age   time.Duration `yaml:"age" min:"1"`
}

// EventLimits bound the Events that are kept.
type EventLimits struct {
	Age   time.Duration `yaml:"age" min:"1"`
	Count int           `yaml:"count" min:"1"`
}

// stateDir is the default directory of a part's state: the system's for root, the user's own for all others.
func stateDir(part string) (string, error) {
	if os.Geteuid() == 0 {
		return filepath.Join("/var/lib/edgebus", part), nil
	}
	if base := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "edgebus", part), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errors.New("data.dir: give one, for the user has no home directory")
	}
	return filepath.Join(home, ".local", "state", "edgebus", part), nil
}

// ProgramsDir is where the versions of core and agent are for root. It is not below /var, where many systems run no programs (noexec,
// SELinux).
const ProgramsDir = "/usr/local/lib/edgebus"

func programsDir() (string, error) {
	if os.Geteuid() == 0 {
		return ProgramsDir, nil
	}
	return stateDir("programs")
}

// logTime is how log lines are stamped.
const logTime = "2006-01-02T15:04:05.000Z07:00"

// Logger writes to w as cfg says: by default for people if w is a terminal, and one
// JSON object a line otherwise.
func Logger(w io.Writer, cfg Log) zerolog.Logger {
	file, ok := w.(*os.File)
	terminal := ok && term.IsTerminal(int(file.Fd()))
	if cfg.Format == "pretty" || (cfg.Format != "json" && terminal) {
		plain := !terminal || os.Getenv("NO_COLOR") != ""
		w = zerolog.ConsoleWriter{Out: w, NoColor: plain, TimeFormat: "15:04:05.000"}
	}
	level, err := zerolog.ParseLevel(cfg.Level)
	if cfg.Level == "off" {
		level, err = zerolog.Disabled, nil
	}
	if err != nil || cfg.Level == "" {
		level = zerolog.InfoLevel
	}
	return zerolog.New(w).Level(level).Hook(timestampHook{})
}

// timestampHook adds the time, in milliseconds: zerolog's own stamp has its precision in a
// global variable, which is not ours to change.
type timestampHook struct{}

func (timestampHook) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str(zerolog.TimestampFieldName, time.Now().Format(logTime))
}
