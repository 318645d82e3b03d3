package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/client"
	hubclient "github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const doctorTime = 3 * time.Second // for each answer

// doctorOptions are the flags of edgebus doctor.
type doctorOptions struct {
	hub, core, server string
	coreGiven         bool
	identity          configs.Identity
	tls               configs.TLSClient
	output            string
	limit             int
}

func newDoctor() *cobra.Command {
	var o doctorOptions
	var context string
	cmd := &cobra.Command{
		Use:   "doctor [NODE]",
		Short: "Say what is wrong with a node's link, and what to do",
		Long: `Ask the hub, and the node's core if it can be reached from here, how the link
between them, mappers and devices are; say in plain words what is well (✓), what to look at (!), and what
is wrong (✗), each with advice. Without a NODE: what is worst of
each node, the worst first.

The exit code is 0 if nothing is wrong, 1 if something is, and 2 if that can't be told
because the hub does not answer.`,
		Example: "  edgebus doctor demo\n  edgebus doctor -o json | jq .links",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.coreGiven = cmd.Flags().Changed("core")
			if err := errors.Join(forMQTT("--server", o.server, "; --hub takes that"), forHTTP("--hub", o.hub, "; --server takes that")); err != nil {
				return withCode(misused, "%w", err)
			}
			p, err := meant(context)
			if err != nil {
				return err
			}
			p = p.at(cmp.Or(o.hub, os.Getenv("EDGEBUS_SERVER"), p.Server), cmp.Or(o.server, p.MQTT))
			o.hub, o.server = p.Server, p.MQTT
			p.fill(&o.tls, &o.identity)
			if len(args) == 0 {
				return o.all(cmd.Context(), cmd.OutOrStdout())
			}
			return o.one(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&context, "context", "", "the hub to ask, by its name: edgebus context --help")
	f.StringVar(&o.hub, "hub", "", "the hub's HTTP address (default: the context's, or "+defaultServer+")")
	f.StringVar(&o.server, "server", "", "the hub's MQTT address (default: the context's, or "+defaultMQTT+")")
	f.StringVar(&o.core, "core", "http://127.0.0.1:10550", "the core's HTTP address; not asked if nothing answers there, unless it is given")
	f.StringVar(&o.identity.User, "user", "", "name to sign in with at the hub")
	f.StringVar(&o.identity.PasswordFile, "password-file", "", "file that holds the password")
	f.StringVar(&o.tls.CA, "ca", "", "certificates of those who sign the servers' certificates")
	f.StringVar(&o.tls.Cert, "cert", "", "certificate to show")
	f.StringVar(&o.tls.Key, "key", "", "key of that certificate")
	f.IntVar(&o.limit, "limit", 50, "without a NODE: list so many nodes")
	f.StringVarP(&o.output, "output", "o", "text", "text or json")
	return cmd
}

// exitCode ends the program with a code, and without another word.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func (o doctorOptions) check() error {
	if o.output != "text" && o.output != "json" {
		return fmt.Errorf("--output is text or json, not %q", o.output)
	}
	if o.limit < 1 {
		return errors.New("--limit is at least 1")
	}
	return nil
}

// one looks at one node.
func (o doctorOptions) one(ctx context.Context, node string, out io.Writer) error {
	if !topics.ValidName(node) {
		return fmt.Errorf("%q is no node's name", node)
	}
	if err := o.check(); err != nil {
		return err
	}
	secure, err := o.tls.Config()
	if err != nil {
		return err
	}
	d := diagnose(o.ask(ctx, secure, node))
	if o.output == "json" {
		err = printJSON(out, d)
	} else {
		err = d.print(out)
	}
	return errors.Join(err, d.exit())
}

// all lists all nodes, the worst first.
func (o doctorOptions) all(ctx context.Context, out io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	secure, err := o.tls.Config()
	if err != nil {
		return err
	}
	var r resource.LinkReport
	if err := o.get(ctx, secure, o.hub, fmt.Sprintf("/links?limit=%d", o.limit), &r); err != nil {
		if (facts{hubErr: err}).hubRefused() {
			fmt.Fprintf(out, "✗ the hub at %s did not let us in: %v\n  → %s\n", o.hub, err, signIn)
		} else {
			fmt.Fprintf(out, "✗ the hub does not answer at %s: %v\n", o.hub, err)
		}
		return exitCode(2)
	}
	s := summarise(r, o.askAll(ctx, secure, r))
	if o.output == "json" {
		err = printJSON(out, s)
	} else {
		err = s.print(out)
	}
	return errors.Join(err, s.exit())
}

func printJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// facts are the answers to what a doctor asks.
type facts struct {
	node              string
	hubAt, coreAt     string
	hub, core         *resource.LinkReport
	hubErr, coreErr   error
	coreGiven         bool
	hubTime, coreTime time.Time // ours, at their answers
	devices           []resource.Device
	mqttAt            string
	mqttErr           error
	mappers           map[string]string // state by name
}

func (o doctorOptions) ask(ctx context.Context, secure *tls.Config, node string) facts {
	f := facts{node: node, hubAt: o.hub, coreAt: o.core, coreGiven: o.coreGiven, mqttAt: o.server}
	var hub resource.LinkReport
	if f.hubErr = o.get(ctx, secure, o.hub, "/links/"+node, &hub); f.hubErr == nil {
		f.hub, f.hubTime = &hub, time.Now()
		f.devices = o.devicesAt(ctx, secure, o.hub, "?fieldSelector="+url.QueryEscape("spec.nodeName="+node))
		var all map[string]map[string]string
		all, f.mqttErr = o.listen(ctx, secure, node)
		f.mappers = all[node]
	}
	f.core, f.coreErr = o.askCore(ctx, secure)
	f.coreTime = time.Now()
	if f.core != nil && f.core.Links[0].Node != node {
		f.core, f.coreErr = nil, fmt.Errorf("that is the core of node %s", f.core.Links[0].Node)
	}
	if f.core != nil && (f.hub == nil || f.alone()) {
		f.devices = o.devicesAt(ctx, secure, o.core, "")
	}
	return f
}

// askAll asks for each node that the hub reports what ask does for one.
func (o doctorOptions) askAll(ctx context.Context, secure *tls.Config, r resource.LinkReport) (all []facts) {
	hubTime := time.Now()
	mappers, mqttErr := o.listen(ctx, secure, "+")
	core, _ := o.askCore(ctx, secure)
	coreTime := time.Now()
	for _, l := range r.Links {
		report := r
		report.Links = []resource.Link{l}
		f := facts{
			node: l.Node, hubAt: o.hub, coreAt: o.core, hub: &report, hubTime: hubTime, mqttAt: o.server, mqttErr: mqttErr, mappers: mappers[l.Node],
			devices: o.devicesAt(ctx, secure, o.hub, "?fieldSelector="+url.QueryEscape("spec.nodeName="+l.Node)),
		}
		if core != nil && core.Links[0].Node == l.Node {
			f.core, f.coreTime = core, coreTime
		}
		all = append(all, f)
	}
	return all
}

// askCore asks the core, if there is one.
func (o doctorOptions) askCore(ctx context.Context, secure *tls.Config) (*resource.LinkReport, error) {
	var core resource.LinkReport
	if err := o.get(ctx, secure, o.core, "/links", &core); err != nil {
		return nil, err
	}
	if len(core.Links) != 1 || core.Program != "edgecore" {
		return nil, errors.New("what answers there is no core")
	}
	return &core, nil
}

// devicesAt are the Devices that an end knows of; without them the rest can still be said.
func (o doctorOptions) devicesAt(ctx context.Context, secure *tls.Config, server, query string) []resource.Device {
	var list struct{ Items []resource.Device }
	_ = o.get(ctx, secure, server, "/apis/"+resource.APIVersion+"/devices"+query, &list)
	return list.Items
}

// get asks a program for a JSON document.
func (o doctorOptions) get(ctx context.Context, secure *tls.Config, server, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, doctorTime)
	defer cancel()
	password, err := o.identity.Secret()
	if err != nil {
		return err
	}
	who := hubclient.Options{Server: server, TLS: secure, Timeout: doctorTime}
	if server == o.hub { // the core has users of its own
		who.User, who.Password = o.identity.User, password
	}
	c, err := hubclient.New(who)
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Get(ctx, path, into)
	var unreachable *hubclient.Unreachable
	if errors.As(err, &unreachable) {
		return errors.New(unreachable.Why) // who it is, and what to do, is said anyway
	}
	return err
}

// listen signs in at the hub's MQTT and hears which mappers the node has, or each node if it is +: states by node and mapper.
func (o doctorOptions) listen(ctx context.Context, secure *tls.Config, node string) (map[string]map[string]string, error) {
	if err := checkMQTT(o.server, o.identity); err != nil {
		return nil, err
	}
	password, err := o.identity.Secret()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTime)
	defer cancel()
	mappers := map[string]map[string]string{} // the callbacks' until Run has returned
	up := false
	failed := errors.New("no answer")
	quiet := time.AfterFunc(doctorTime, cancel)
	defer quiet.Stop()
	c, err := client.New(client.Options{
		Servers: []string{o.server}, ClientID: fmt.Sprintf("edgebus-doctor-%d-%d", os.Getpid(), time.Now().UnixNano()%1e6),
		User: o.identity.User, Password: password, TLS: secure, CleanStart: true, Attempts: 1, ConnectTimeout: doctorTime,
		Subscriptions: []client.Subscription{{Filter: topics.Prefix + node + "/mappers/+/state", QoS: 1}},
		OnConnect:     func(context.Context, bool) error { up = true; quiet.Reset(settleTime); return nil },
		OnMessage: func(m client.Message) {
			quiet.Reset(settleTime)
			if a, err := topics.Parse(m.Topic); err == nil && a.Kind == topics.KindMapperState {
				if mappers[a.Node] == nil {
					mappers[a.Node] = map[string]string{}
				}
				mappers[a.Node][a.Device] = string(m.Payload)
			}
		},
		OnDisconnect:   func(err error) { failed = err },
		OnConnectError: func(err error) { failed = err },
	})
	if err != nil {
		return nil, err
	}
	if err := c.Run(ctx); err != nil || !up {
		return nil, failed
	}
	return mappers, nil
}

const settleTime = 300 * time.Millisecond // nothing more comes when nothing came for this long

// print shows a diagnosis to people.
func (d diagnosis) print(out io.Writer) error {
	var b strings.Builder
	on := coloursOn(out)
	fmt.Fprintf(&b, "Node %s: %s\n", d.Node, on.paint(strong, d.Verdict))
	for _, x := range d.Findings {
		fmt.Fprintf(&b, "%s %s\n", on.sign(x.Mark), printable(x.What, 300))
		if x.Advice != "" {
			fmt.Fprintf(&b, "  → %s\n", x.Advice)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// print shows a summary to people.
func (s summary) print(out io.Writer) error {
	var b strings.Builder
	on := coloursOn(out)
	for _, x := range s.Hub {
		fmt.Fprintf(&b, "%s %s\n", on.sign(x.Mark), printable(x.What, 300))
	}
	for _, l := range s.Links {
		fmt.Fprintf(&b, "%s %s  %s\n", on.sign(l.Mark), l.Node, printable(l.What, 200))
	}
	if s.More > 0 {
		fmt.Fprintf(&b, "… and %d more, of which no link is worse\n", s.More)
	}
	if len(s.Links) == 0 {
		b.WriteString("the hub knows no nodes yet\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
