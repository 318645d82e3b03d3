// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/clusterca"
	"github.com/edgebus/edgebus/cloud/hubdata"
)

const certificatesAbout = `Makes for each NATS server that replicates the log a directory with its certificate, the hubs' authority, and settings that let nobody else in.

A server's NAME is that by which hubs and the other servers reach it; further names and IP addresses of it may follow after commas. Copy each
directory to its server, as safely as a key, and delete it here. The hubs need no certificates: each makes its own with cluster.key, which is made
here if there is none. The hub need not be stopped.

Done again, it makes new certificates, which servers read with nats-server --signal reload, and leaves their settings as they are.
`

// serverNames are one server's, as they are given to the command.
type serverNames []string

func parseServerNames(args []string) (all []serverNames, err error) {
	seen := make(map[string]bool)
	for _, arg := range args {
		names := strings.Split(arg, ",")
		for _, name := range names {
			if name == "" || strings.ContainsAny(name, "/\\\"{}$ \t\n") || name == "." || name == ".." {
				return nil, fmt.Errorf("%.100q is no name of a server: write a DNS name or an IP address, without a port", name)
			}
			if seen[name] {
				return nil, fmt.Errorf("%s is the name of two servers", name)
			}
			seen[name] = true
		}
		all = append(all, names)
	}
	return all, nil
}

// clusterCertificates writes the servers' certificates and settings.
func clusterCertificates(c *clusterCall) error {
	servers, err := parseServerNames(c.flags.Args())
	if err != nil {
		return err
	}
	valid, _ := c.flags.GetDuration("valid")
	if valid < time.Minute {
		return fmt.Errorf("--valid %s is too short", valid)
	}
	key, err := clusterKey(c.cfg.Data.Dir)
	if err != nil {
		return err
	}
	authority, err := clusterca.New(key)
	if err != nil {
		return err
	}
	settings := serverSettings{Stream: c.cfg.Store.NATS.Stream}
	settings.At, _ = c.flags.GetString("at")
	for _, names := range servers {
		settings.Routes = append(settings.Routes, "tls://"+net.JoinHostPort(names[0], "6222"))
	}
	for _, names := range servers {
		settings.Name = names[0]
		if err := settings.write(filepath.Join(c.output, names[0]), names, authority, valid); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.stdout, `Certificates of %d servers are in %s, valid until %s. Copy each directory to its server as %s, and start that with
  nats-server --config %s/nats-server.conf
The hubs' settings: store.nats.servers [tls://NAME:4222, …], store.nats.monitor [https://NAME:8222, …]. Delete %s then: it has the servers' keys.
`, len(servers), c.output, time.Now().Add(valid).UTC().Format(time.RFC3339), settings.At, settings.At, c.output)
	return nil
}

// clusterKey reads the key of a hub's cluster, or makes it.
func clusterKey(dir string) (key sealed.Key, err error) {
	file := filepath.Join(dir, hubdata.ClusterKeyFile)
	if key, err = sealed.LoadKey(file); !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		made, err := datadir.Open(dir, "cloudhub")
		if err == nil {
			err = made.Close()
		}
		if err != nil {
			return key, err
		}
	}
	if err := sealed.NewKey().Write(file); err != nil && !errors.Is(err, fs.ErrExist) {
		return key, err
	}
	if err := datadir.CopyOwner(dir, dir); err != nil { // the service is no root, who may be asked for this
		return key, err
	}
	return sealed.LoadKey(file)
}

// serverSettings are those of one NATS server.
type serverSettings struct {
	Name, At, Stream string
	Routes           []string
}

// serverTemplate has no path but At and the store's. Whoever has another certificate of the authority than a hub's is no user, and who has one of another
// authority, such as a node, has no connection. What a server advertises is its name: otherwise the others try its IP address, too, which its certificate
// needn't have, again and again.
const serverTemplate = `# Settings of a NATS server with the log of Edgebus hubs.
server_name: "{{name}}"
listen: "0.0.0.0:4222"
client_advertise: "{{host}}:4222"
https: "0.0.0.0:8222"     # it says how the server is to who reaches it; hubs ask for it
max_payload: 1MB
jetstream {
  store_dir: "/var/lib/nats"
  sync_interval: always   # else it acknowledges what isn't on its disk
}
tls {
  cert_file: "{{at}}/server.crt"
  key_file: "{{at}}/server.key"
  ca_file: "{{at}}/ca.crt"
  verify_and_map: true    # the certificate is the user
  timeout: 5
}
cluster {
  name: edgebus
  listen: "0.0.0.0:6222"
  advertise: "{{host}}:6222"
  routes: [{{routes}}]
  tls {
    cert_file: "{{at}}/server.crt"
    key_file: "{{at}}/server.key"
    ca_file: "{{at}}/ca.crt"
    verify: true
    timeout: 5
  }
}
accounts {
  HUBS {
    jetstream: enabled
    users: [ { user: "{{hub}}", permissions: {
      publish: [
        "edgebus.log.{{stream}}", "edgebus.end.{{stream}}", "edgebus.at.{{stream}}", "$JS.API.DIRECT.GET.{{stream}}",
        "$JS.API.STREAM.INFO.{{stream}}", "$JS.API.STREAM.CREATE.{{stream}}", "$JS.API.STREAM.UPDATE.{{stream}}", "$JS.API.STREAM.PURGE.{{stream}}",
        "$JS.API.STREAM.DELETE.{{stream}}" # cluster restore makes it anew
      ]
      subscribe: [ "edgebus.end.{{stream}}", "edgebus.at.{{stream}}", "_INBOX_{{stream}}.>" ]
    } } ]
  }
  SYS {}
}
system_account: SYS
`

func (s serverSettings) String() string {
	host := s.Name
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return strings.NewReplacer("{{name}}", s.Name, "{{host}}", host, "{{at}}", path.Clean(s.At), "{{stream}}", s.Stream, "{{hub}}", clusterca.HubName, "{{routes}}", `"`+strings.Join(s.Routes, `", "`)+`"`).Replace(serverTemplate)
}

func (s serverSettings) write(dir string, names []string, authority *clusterca.Authority, valid time.Duration) error {
	cert, key, err := authority.Server(names, valid)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, text := range map[string][]byte{"server.crt": cert, "server.key": key, "ca.crt": authority.PEM()} {
		if err := datadir.WriteFile(filepath.Join(dir, name), text); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(filepath.Join(dir, "nats-server.conf"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = file.WriteString(s.String())
	return errors.Join(err, file.Close())
}
