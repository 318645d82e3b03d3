// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
)

// Main is the program mapper-opcua.
func Main(args []string, stdout, stderr io.Writer) int {
	return cmd.Program[configs.OPCUA]{
		Name:  "mapper-opcua",
		Short: "The mapper for OPC UA servers",
		Long: `mapper-opcua connects to a node's broker and drives every Device of that node whose
protocol is "opcua". The Device says where the server is, and how it is signed in to:

  protocol: {type: opcua, config: {endpoint: "opc.tcp://10.0.0.5:4840"}}

and its model's visitors say which variable is which property, or which of the server's events.

Security is the best that the server offers. The server must trust this mapper's certificate:
mapper-opcua certificate prints it. mapper-opcua browse writes a Device and a DeviceModel.`,
		Example: `  mapper-opcua                                     # the node on this host
  mapper-opcua endpoints opc.tcp://10.0.0.5:4840
  mapper-opcua browse opc.tcp://10.0.0.5:4840 --filter press --node node1 | edgebus apply -f -
  mapper-opcua read opc.tcp://10.0.0.5:4840 'ns=2;s=Temperature'`,
		Table: protocolSettings,
		Driver: func(c configs.OPCUA, _ *mappers.Options) (mappers.Driver, error) {
			dir, err := c.Directory()
			if err != nil {
				return nil, err
			}
			if _, err := loadIdentity(dir); err != nil {
				return nil, err
			}
			return New(Options{DataDir: dir, CredentialsDir: c.CredentialsDir, Timeout: c.Timeout}), nil
		},
		Commands: []*cobra.Command{browseCommand(stdout, stderr), certificateCommand(stdout), endpointsCommand(stdout), readCommand(stdout)},
	}.Main(args, stdout, stderr)
}

// addDataDir adds the flag for the directory of the certificate, which is the running mapper's by default.
func addDataDir(c *cobra.Command, dir *string) {
	c.Flags().StringVar(dir, "data-dir", "", "directory of this mapper's key and certificate (default: as the mapper's settings say)")
	c.PreRunE = func(*cobra.Command, []string) error {
		if *dir != "" {
			return nil
		}
		settings, err := configs.Load[configs.Mapper[configs.OPCUA]]("mapper-opcua", "", nil)
		if err == nil {
			*dir, err = settings.Driver.Directory()
		}
		return err
	}
}

// connectFlags are those of commands that connect to a server.
type connectFlags struct {
	dataDir, policy, mode, user, passwordFile string
	timeout                                   time.Duration
}

func (f *connectFlags) add(c *cobra.Command) {
	addDataDir(c, &f.dataDir)
	c.Flags().StringVar(&f.policy, "security-policy", "auto", "security policy; auto is the best that the server offers")
	c.Flags().StringVar(&f.mode, "security-mode", "", "None, Sign or SignAndEncrypt; empty: the best")
	c.Flags().StringVar(&f.user, "user", "", "user to sign in as; empty: anonymous")
	c.Flags().StringVar(&f.passwordFile, "password-file", "", "file with the user's password")
	c.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long all of it may take")
}

// run connects to a server and calls do.
func (f *connectFlags) run(c *cobra.Command, url string, do func(ctx context.Context, s *wire.Session) error) error {
	device := map[string]string{"endpoint": url, "securityPolicy": f.policy, "securityMode": f.mode}
	config, err := parseDevice(mappers.Device{Config: device}, Options{Timeout: f.timeout})
	if err != nil {
		return err
	}
	o := config.options
	if o.Policy != wire.PolicyNone {
		if o.Identity, err = loadIdentity(f.dataDir); err != nil && f.policy != "auto" {
			return cmd.Failed(err)
		}
	}
	if o.User = f.user; f.passwordFile != "" {
		b, err := os.ReadFile(f.passwordFile)
		if err != nil {
			return cmd.Failed(err)
		}
		o.Password = strings.TrimRight(string(b), "\r\n")
	}
	ctx, stop := commandContext(c, f.timeout)
	defer stop()
	s, err := wire.Dial(ctx, o)
	if err != nil {
		return cmd.Failed(err)
	}
	defer func() { _ = s.Close() }()
	return cmd.Failed(do(ctx, s))
}

func commandContext(c *cobra.Command, timeout time.Duration) (context.Context, func()) {
	ctx := c.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, func() { cancel(); stop() }
}

func browseCommand(out, progress io.Writer) *cobra.Command {
	var f connectFlags
	var filter, node, name, root string
	c := &cobra.Command{
		Use: "browse URL", Short: "Write a Device and a DeviceModel of a server's variables and methods", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			from, namespace, err := wire.ParseNodeID(root)
			if err != nil || namespace != "" {
				return fmt.Errorf("--root %q must be a node such as ns=2;s=Press or i=85", root)
			}
			return f.run(c, args[0], func(ctx context.Context, s *wire.Session) error {
				b, err := newTreeBrowser(ctx, s, filter, progress)
				if err != nil {
					return err
				}
				b.found = cmd.FoundDevice{Name: name, Node: node, Protocol: "opcua", Config: map[string]string{"endpoint": args[0]}}
				if f.policy != "auto" {
					b.found.Config["securityPolicy"] = f.policy
				}
				if err := b.walk(ctx, from, nil); err != nil {
					return err
				}
				b.left.tell(progress)
				if len(b.found.Properties) == 0 {
					return fmt.Errorf("no variable below %s has a path that contains %q", root, filter)
				}
				return cmd.WriteManifests(out, b.found)
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&filter, "filter", "", "only variables and methods whose path contains this")
	c.Flags().StringVar(&root, "root", "i=85", "the node to begin with")
	c.Flags().StringVar(&name, "name", "opcua", "the Device's name, and the model's")
	c.Flags().StringVar(&node, "node", "node1", "the Device's node")
	return c
}

func readCommand(out io.Writer) *cobra.Command {
	var f connectFlags
	c := &cobra.Command{
		Use: "read URL NODE", Short: "Print a variable's value", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			id, namespace, err := wire.ParseNodeID(args[1])
			if err != nil {
				return fmt.Errorf("%q %w", args[1], err)
			}
			return f.run(c, args[0], func(ctx context.Context, s *wire.Session) error {
				one := &field{node: id, namespace: namespace}
				conn := newConnection(s)
				if err := conn.resolve(ctx, []*field{one}, func(string, string) {}); err != nil {
					return err
				}
				node, ok := conn.nodes[one]
				if !ok {
					return fmt.Errorf("the server has no namespace %s", namespace)
				}
				values, err := s.Read(ctx, []wire.ReadRequest{{Node: node, Attribute: wire.AttributeValue}})
				if err != nil {
					return err
				}
				if values[0].Value, err = conn.types.open(ctx, values[0].Value); err != nil {
					return err
				}
				r := one.reading(values[0])
				if r.Err != nil {
					return r.Err
				}
				_, err = fmt.Fprintf(out, "%s (%s)\n", r.Value, values[0].Value.Kind)
				return err
			})
		},
	}
	f.add(c)
	return c
}

func endpointsCommand(out io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "endpoints URL", Short: "List the security that a server offers", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := commandContext(c, 10*time.Second)
			defer stop()
			list, err := wire.Endpoints(ctx, args[0])
			if err != nil {
				return cmd.Failed(err)
			}
			return cmd.Failed(printEndpoints(list, out))
		},
	}
}

func certificateCommand(out io.Writer) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "certificate", Short: "Print which certificate a server must trust", Args: cobra.NoArgs,
		Long: `certificate prints the file of this mapper's certificate and its fingerprint, and makes it if there
is none. Copy the file to the server's folder of trusted certificates, or accept it in the
server's list of rejected ones, where it is after the first attempt to connect.`,
		RunE: func(*cobra.Command, []string) error {
			id, err := loadIdentity(dir)
			if err != nil {
				return cmd.Failed(err)
			}
			_, err = fmt.Fprintf(out, "file         %s\napplication  %s\nSHA-256      %s\n", filepath.Join(dir, certFile), id.URI, wire.Fingerprint(id.Cert))
			return cmd.Failed(err)
		},
	}
	addDataDir(c, &dir)
	return c
}
