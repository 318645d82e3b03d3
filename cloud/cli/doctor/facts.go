package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/access"
	hubclient "github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// worksAlone reports whether the node has no hub by its own settings: a hub's answer does not matter then.
func (f facts) worksAlone() bool { return f.core != nil && f.core.Links[0].State == resource.LinkAlone }

// hubRefused reports whether the hub answered that the credentials are missing, wrong, or not enough.
func (f facts) hubRefused() bool {
	kind := resource.KindOf(f.hubErr)
	return kind == resource.Unauthorized || kind == resource.Forbidden
}

// unknown reports whether the hub, which has answered, knows no link of the node.
func (f facts) unknown() bool {
	return len(f.hub.Links) == 0 || f.hub.Links[0].State == resource.Unknown
}

// hubLink is the hub's end of the link.
func (f facts) hubLink() (l resource.Link) {
	if f.hub != nil && len(f.hub.Links) > 0 {
		l = f.hub.Links[0]
	}
	return l
}

// link is the link as the hub sees it, with what its core knows better, else as the core sees it; known is false if the hub has never
// heard of the node.
func (f facts) link() (l resource.Link, known bool) {
	if f.hub != nil && f.unknown() || f.hub == nil && f.core == nil {
		return l, false
	}
	l = f.hubLink()
	if f.core != nil {
		core := f.core.Links[0]
		if f.hub == nil {
			l = core
		}
		if core.CertificateExpires != "" && (l.CertificateExpires == "" || core.CertificateExpires < l.CertificateExpires) {
			l.CertificateExpires = core.CertificateExpires
		}
		l.RenewalError, l.RenewalFailingSince = core.RenewalError, core.RenewalFailingSince // which is newer than what the hub knows
		l.OverQuota = cmp.Or(l.OverQuota, core.OverQuota)
	}
	return l, true
}

const doctorTimeout = 3 * time.Second // for each answer

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
			f.similar = o.target.SimilarNode(ctx, node)
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
	return access.RequestsByNode(list.Items)
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
	core := o.target.ForCore(o.core)
	return o.get(ctx, core, path, into)
}

func (o doctorOptions) get(ctx context.Context, from access.Target, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	as, err := from.APIOptions()
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
	as, err := o.target.MQTTOptions("doctor")
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
