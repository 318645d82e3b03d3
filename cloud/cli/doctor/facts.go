// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/diagnosis"
	hubclient "github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const doctorTimeout = 3 * time.Second // for each answer

// collectFacts asks hub, core and broker about a node.
func (o doctorOptions) collectFacts(ctx context.Context, node string) diagnosis.Facts {
	f := diagnosis.Facts{Node: node, HubAt: o.target.Server, CoreAt: o.core, CoreGiven: o.coreGiven, MQTTAt: o.target.MQTT}
	var hub resource.LinkReport
	if f.HubErr = o.getFromHub(ctx, "/links/"+node, &hub); f.HubErr == nil {
		f.Hub, f.HubTime = &hub, time.Now()
		if f.Unknown() {
			f.Waiting = o.waitingRequests(ctx)[node]
		}
		if f.Joined, f.Conditions = o.node(ctx, node); f.Unknown() {
			f.Similar = o.target.SimilarNode(ctx, node)
		}
		f.Devices = o.devicesOf(ctx, node)
		var all map[string]map[string]string
		all, f.MQTTErr = o.mapperStates(ctx, node)
		f.Mappers = all[node]
	}
	f.Core, f.CoreErr = o.coreReport(ctx)
	f.CoreTime = time.Now()
	if f.Core != nil && f.Core.Links[0].Node != node {
		f.Core, f.CoreErr = nil, fmt.Errorf("that is the core of node %s", f.Core.Links[0].Node)
	}
	if f.Core != nil && (f.Hub == nil || f.WorksAlone()) {
		var list deviceList
		_ = o.getFromCore(ctx, devicesPath, &list) // without them the rest can still be said
		f.Devices = list.Items
	}
	return f
}

// collectAllFacts asks for each node that the hub reports what ask does for one.
func (o doctorOptions) collectAllFacts(ctx context.Context, r resource.LinkReport) (all []diagnosis.Facts) {
	hubTime := time.Now()
	mappers, mqttErr := o.mapperStates(ctx, "+")
	core, _ := o.coreReport(ctx)
	coreTime := time.Now()
	for _, l := range r.Links {
		report := r
		report.Links = []resource.Link{l}
		f := diagnosis.Facts{
			Node: l.Node, HubAt: o.target.Server, CoreAt: o.core, Hub: &report, HubTime: hubTime, MQTTAt: o.target.MQTT, MQTTErr: mqttErr,
			Mappers: mappers[l.Node], Devices: o.devicesOf(ctx, l.Node),
		}
		_, f.Conditions = o.node(ctx, l.Node)
		if core != nil && core.Links[0].Node == l.Node {
			f.Core, f.CoreTime = core, coreTime
		}
		all = append(all, f)
	}
	return append(all, o.collectAbsentFacts(ctx, r)...)
}

// collectAbsentFacts asks for the nodes that have joined, but of which the hub reports no link: they never connected, or not since it was started.
func (o doctorOptions) collectAbsentFacts(ctx context.Context, r resource.LinkReport) (all []diagnosis.Facts) {
	var list struct{ Items []resource.Node }
	// One that has joined just now has no state yet. Without these nodes the rest can still be said.
	_ = o.getFromHub(ctx, fmt.Sprintf("/apis/%s/nodes?limit=%d&fieldSelector=%s", resource.APIVersion, o.limit, url.QueryEscape("status.state!="+resource.Online)), &list)
	for _, n := range list.Items {
		f := diagnosis.Facts{Node: n.Metadata.Name, HubAt: o.target.Server, Joined: joinedAt(n), Conditions: n.Status.Conditions, Hub: &resource.LinkReport{}, HubTime: time.Now()}
		if f.Joined == "" || slices.ContainsFunc(r.Links, func(l resource.Link) bool { return l.Node == f.Node }) {
			continue
		}
		if err := o.getFromHub(ctx, "/links/"+f.Node, f.Hub); err == nil && f.Unknown() {
			f.Devices = o.devicesOf(ctx, f.Node)
			all = append(all, f)
		}
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
	return joinedAt(n), n.Status.Conditions
}

// joinedAt is when a node joined; empty: it did not.
func joinedAt(n resource.Node) string {
	at, _, _ := strings.Cut(n.Metadata.Annotations[resource.Group+"/joined"], " ")
	return at
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
