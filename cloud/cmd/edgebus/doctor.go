package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/client"
	hubclient "github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const doctorTimeout = 3 * time.Second // for each answer

// doctorOptions are the flags of edgebus doctor.
type doctorOptions struct {
	access
	target    hubTarget // the hub, once the flags are resolved
	core      string
	coreGiven bool
	output    string
	limit     int
}

func newDoctor() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [NODE]",
		Short: "Find out what is wrong with a node, and what to do",
		Long: `Ask the hub, and the node's core if it can be reached from here, about the link between them, and about
mappers and devices. Print what is right (✓), what should be looked at (!), and what is wrong (✗), with advice.
Without a NODE: the worst finding of each node, the worst first.

The exit code is 0 if nothing is wrong, 1 if something is, and 2 if the hub does not answer, so
that this is not known.`,
		Example: "  edgebus doctor demo\n  edgebus doctor -o json | jq .links",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.coreGiven = cmd.Flags().Changed("core")
			var err error
			if o.target, err = o.resolve(); err != nil {
				return err
			}
			if o.limit < 1 {
				return exitErrorf(misused, "--limit is at least 1, not %d", o.limit)
			}
			if len(args) == 0 {
				return o.diagnoseAll(cmd.Context(), cmd.OutOrStdout())
			}
			return o.diagnoseOne(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	o.flags(cmd, "hub", "server")
	f := cmd.Flags()
	f.StringVar(&o.core, "core", "http://127.0.0.1:10550", "the core's HTTP address; not asked if nothing answers there, unless it is given")
	f.IntVar(&o.limit, "limit", 50, "without a NODE: the number of nodes to list")
	outputFlag(cmd, &o.output, "", "text", "json")
	return cmd
}

// exitCode ends the program with a code. All messages have been printed.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// diagnoseOne prints the diagnosis of a node.
func (o doctorOptions) diagnoseOne(ctx context.Context, node string, out io.Writer) error {
	if !topics.ValidName(node) {
		return fmt.Errorf("%q is no node's name", node)
	}
	d := diagnose(o.collectFacts(ctx, node))
	return errors.Join(o.print(out, d, d.text), d.exitError())
}

// diagnoseAll prints one finding for each node, the worst first.
func (o doctorOptions) diagnoseAll(ctx context.Context, out io.Writer) error {
	var r resource.LinkReport
	if err := o.getFromHub(ctx, fmt.Sprintf("/links?limit=%d", o.limit), &r); err != nil {
		if (facts{hubErr: err}).hubRefused() {
			fmt.Fprintf(out, "✗ the hub at %s did not let us in: %v\n  → %s\n", o.target.Server, err, signIn)
		} else {
			fmt.Fprintf(out, "✗ the hub does not answer at %s: %v\n", o.target.Server, err)
		}
		return exitCode(2)
	}
	s := summariseNodes(r, o.collectAllFacts(ctx, r))
	waiting := o.waitingRequests(ctx)
	for _, node := range slices.Sorted(maps.Keys(waiting)) {
		s.Hub = append(s.Hub, finding{Mark: markLook, Text: waitingText(node, waiting[node])})
	}
	return errors.Join(o.print(out, s, s.text), s.exitError())
}

func (o doctorOptions) print(out io.Writer, v any, text func(colours) string) error {
	if o.output == "json" {
		return printJSON(out, v)
	}
	_, err := io.WriteString(out, text(coloursOn(out)))
	return err
}

func printJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// facts are the answers that a diagnosis is made from.
type facts struct {
	node              string
	hubAt, coreAt     string
	hub, core         *resource.LinkReport
	hubErr, coreErr   error
	coreGiven         bool
	hubTime, coreTime time.Time // of this host, when they answered
	devices           []resource.Device
	mqttAt            string
	mqttErr           error
	mappers           map[string]string    // state by name
	waiting           []string             // names of EnrollmentRequests of the node without a decision
	similar           string               // ": did you mean n1?", of a node that the hub doesn't know
	joined            string               // when a node that has never connected to the hub has joined; empty: it has not
	conditions        []resource.Condition // of the Node
}

func (o doctorOptions) collectFacts(ctx context.Context, node string) facts {
	f := facts{node: node, hubAt: o.target.Server, coreAt: o.core, coreGiven: o.coreGiven, mqttAt: o.target.MQTT}
	var hub resource.LinkReport
	if f.hubErr = o.getFromHub(ctx, "/links/"+node, &hub); f.hubErr == nil {
		f.hub, f.hubTime = &hub, time.Now()
		if f.unknown() {
			f.waiting = o.waitingRequests(ctx)[node]
		}
		if f.joined, f.conditions = o.node(ctx, node); f.unknown() {
			f.similar = o.target.similarNode(ctx, node)
		}
		f.devices = o.devicesOf(ctx, node)
		var all map[string]map[string]string
		all, f.mqttErr = o.mapperStates(ctx, node)
		f.mappers = all[node]
	}
	f.core, f.coreErr = o.coreReport(ctx)
	f.coreTime = time.Now()
	if f.core != nil && f.core.Links[0].Node != node {
		f.core, f.coreErr = nil, fmt.Errorf("that is the core of node %s", f.core.Links[0].Node)
	}
	if f.core != nil && (f.hub == nil || f.worksAlone()) {
		var list deviceList
		_ = o.getFromCore(ctx, devicesPath, &list) // without them the rest can still be said
		f.devices = list.Items
	}
	return f
}

// collectAllFacts asks for each node that the hub reports what ask does for one.
func (o doctorOptions) collectAllFacts(ctx context.Context, r resource.LinkReport) (all []facts) {
	hubTime := time.Now()
	mappers, mqttErr := o.mapperStates(ctx, "+")
	core, _ := o.coreReport(ctx)
	coreTime := time.Now()
	for _, l := range r.Links {
		report := r
		report.Links = []resource.Link{l}
		f := facts{
			node: l.Node, hubAt: o.target.Server, coreAt: o.core, hub: &report, hubTime: hubTime, mqttAt: o.target.MQTT, mqttErr: mqttErr,
			mappers: mappers[l.Node], devices: o.devicesOf(ctx, l.Node),
		}
		_, f.conditions = o.node(ctx, l.Node)
		if core != nil && core.Links[0].Node == l.Node {
			f.core, f.coreTime = core, coreTime
		}
		all = append(all, f)
	}
	return all
}

// coreReport asks the core, if there is one.
func (o doctorOptions) coreReport(ctx context.Context) (*resource.LinkReport, error) {
	var core resource.LinkReport
	if err := o.getFromCore(ctx, "/links", &core); err != nil {
		return nil, err
	}
	if len(core.Links) != 1 || core.Program != "edgecore" {
		return nil, errors.New("it is not a core")
	}
	return &core, nil
}

// waitingRequests returns the names of the EnrollmentRequests that are not decided, by node. Without them the rest can still be said.
func (o doctorOptions) waitingRequests(ctx context.Context) map[string][]string {
	var list struct{ Items []resource.EnrollmentRequest }
	_ = o.getFromHub(ctx, "/apis/"+resource.APIVersion+"/enrollmentrequests", &list)
	return requestsByNode(list.Items)
}

func requestsByNode(list []resource.EnrollmentRequest) map[string][]string {
	waiting := map[string][]string{}
	for _, er := range list {
		if er.Spec.Approval == "" {
			node := cmp.Or(er.Spec.NodeName, er.Metadata.Name)
			waiting[node] = append(waiting[node], er.Metadata.Name)
		}
	}
	return waiting
}

// waitingText returns the finding that a node waits for approval, and what to do.
func waitingText(node string, requests []string) string {
	if len(requests) == 1 {
		return fmt.Sprintf("%s waits for approval: edgebus approve %s", node, node)
	}
	return fmt.Sprintf("several nodes wait for approval as %s: edgebus approve one of %s", node, firstNames(requests))
}

// node is when a node joined, empty if it did not, and the conditions of its Node.
func (o doctorOptions) node(ctx context.Context, node string) (joined string, conditions []resource.Condition) {
	var n resource.Node
	_ = o.getFromHub(ctx, "/apis/"+resource.APIVersion+"/nodes/"+node, &n) // without it the rest can still be said
	joined, _, _ = strings.Cut(n.Metadata.Annotations[resource.Group+"/joined"], " ")
	return joined, n.Status.Conditions
}

const devicesPath = "/apis/" + resource.APIVersion + "/devices"

type deviceList struct{ Items []resource.Device }

// devicesOf returns the hub's Devices of a node, or none after an error: the other findings don't need them.
func (o doctorOptions) devicesOf(ctx context.Context, node string) []resource.Device {
	var list deviceList
	_ = o.getFromHub(ctx, devicesPath+"?fieldSelector="+url.QueryEscape("spec.nodeName="+node), &list)
	return list.Items
}

// getFromHub asks the hub for a JSON document.
func (o doctorOptions) getFromHub(ctx context.Context, path string, into any) error {
	return o.get(ctx, o.target, path, into)
}

// getFromCore asks the core. It has users of its own.
func (o doctorOptions) getFromCore(ctx context.Context, path string, into any) error {
	core := hubTarget{cluster: o.target.cluster, user: user{Cert: o.target.Cert, CertData: o.target.CertData, Key: o.target.Key, KeyData: o.target.KeyData}}
	core.Server, core.ServerName, core.Proxy = o.core, "", ""
	return o.get(ctx, core, path, into)
}

func (o doctorOptions) get(ctx context.Context, from hubTarget, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	as, err := from.apiOptions()
	if err != nil {
		return err
	}
	as.Timeout = doctorTimeout
	c, err := hubclient.New(as)
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Get(ctx, path, into)
	var unreachable *hubclient.Unreachable
	if errors.As(err, &unreachable) {
		return errors.New(unreachable.Why) // the address and the advice are printed anyway
	}
	return err
}

// mapperStates asks the hub's broker which mappers the node has, or each node if it is +: states by node and mapper.
func (o doctorOptions) mapperStates(ctx context.Context, node string) (map[string]map[string]string, error) {
	as, err := o.target.mqttOptions("doctor")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	mappers := map[string]map[string]string{} // the callbacks' until Run has returned
	up := false
	failed := errors.New("no answer")
	quiet := time.AfterFunc(doctorTimeout, cancel)
	defer quiet.Stop()
	as.Attempts, as.ConnectTimeout = 1, doctorTimeout
	as.Subscriptions = []client.Subscription{{Filter: topics.Prefix + node + "/mappers/+/state", QoS: 1}}
	as.OnConnect = func(context.Context, bool) error { up = true; quiet.Reset(mapperSettleTime); return nil }
	as.OnMessage = func(m client.Message) {
		quiet.Reset(mapperSettleTime)
		if a, err := topics.Parse(m.Topic); err == nil && a.Kind == topics.KindMapperState {
			if mappers[a.Node] == nil {
				mappers[a.Node] = map[string]string{}
			}
			mappers[a.Node][a.Device] = string(m.Payload)
		}
	}
	as.OnDisconnect = func(err error) { failed = err }
	as.OnConnectError = as.OnDisconnect
	c, err := client.New(as)
	if err != nil {
		return nil, err
	}
	if err := c.Run(ctx); err != nil || !up {
		return nil, failed
	}
	return mappers, nil
}

const mapperSettleTime = 300 * time.Millisecond // the mappers are complete when none was received for this long

// text is a diagnosis for people.
func (d nodeDiagnosis) text(on colours) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Node %s: %s\n", d.Node, on.paint(styleBold, d.Verdict))
	for _, x := range d.Findings {
		fmt.Fprintf(&b, "%s %s\n", paintMark(on, x.Mark), printableText(x.Text, 300))
		if x.Advice != "" {
			fmt.Fprintf(&b, "  → %s\n", x.Advice)
		}
	}
	return b.String()
}

// text is a summary for people.
func (s nodesSummary) text(on colours) string {
	var b strings.Builder
	for _, x := range s.Hub {
		fmt.Fprintf(&b, "%s %s\n", paintMark(on, x.Mark), printableText(x.Text, 300))
	}
	for _, l := range s.Links {
		fmt.Fprintf(&b, "%s %s  %s\n", paintMark(on, l.Mark), l.Node, printableText(l.Text, 200))
	}
	if s.More > 0 {
		fmt.Fprintf(&b, "… and %d more, of which no link is worse\n", s.More)
	}
	if len(s.Links) == 0 {
		b.WriteString("the hub knows no nodes yet\n")
	}
	return b.String()
}
