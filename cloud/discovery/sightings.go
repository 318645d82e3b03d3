package discovery

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// sightingIndex is what watches and reports have told: who sees what, and which objects concern each other. Everything in it comes again
// after a restart.
type sightingIndex struct {
	reader store.Reader

	mu            sync.Mutex
	completeKinds map[topics.Kind]bool // all that nodes had reported when the hub started is in it

	loading sync.Mutex
	loaded  bool // all objects were read once

	instanceAt     map[topics.Address]string // the Instance that a report is about
	sightings      map[string]map[topics.Address]resource.DiscoveredDevice
	deviceCounts   map[string]map[string]int                                          // by Configuration and node: how many devices it sees, maxSightings at most
	excess         map[string]map[string]map[topics.Address]resource.DiscoveredDevice // by Configuration and node: those that are more
	sharedCounts   map[string]map[string]int                                          // by node and Instance: at how many topics it reports a shared device
	handlerReports map[string]map[string]resource.HandlerReport                       // by Configuration and node

	confs           map[string]knownConfiguration    // by name
	made            map[string]knownInstance         // by name
	of              map[string]map[string]bool       // by Configuration: names of its Instances, made or seen
	discovererSigns map[string]map[string]bool       // by node: by what it is known that it runs edgediscovery: a handler that it reports, or its presence
	users           map[string]map[string]bool       // by node: names of the Instances that it uses
	refs            map[store.Key]map[store.Key]bool // by Secret or ConfigMap: the Configurations that refer to it
	has             map[store.Key]map[store.Key]bool // the other way round
}

type knownConfiguration struct {
	key  store.Key
	conf *resource.Configuration
}

type knownInstance struct {
	namespace, configuration string
	nodes                    []string
	broker                   resource.Condition // BrokerReady; zero: it has none
}

func newSightingIndex(reader store.Reader) *sightingIndex {
	return &sightingIndex{
		reader: reader, completeKinds: make(map[topics.Kind]bool),
		instanceAt: make(map[topics.Address]string), sightings: make(map[string]map[topics.Address]resource.DiscoveredDevice),
		deviceCounts: make(map[string]map[string]int), excess: make(map[string]map[string]map[topics.Address]resource.DiscoveredDevice), sharedCounts: make(map[string]map[string]int), handlerReports: make(map[string]map[string]resource.HandlerReport),
		confs: make(map[string]knownConfiguration), made: make(map[string]knownInstance), of: make(map[string]map[string]bool), discovererSigns: make(map[string]map[string]bool), users: make(map[string]map[string]bool),
		refs: make(map[store.Key]map[store.Key]bool), has: make(map[store.Key]map[store.Key]bool),
	}
}

// putNested, add and drop change a map of maps, of which none is empty.
func putNested[A, B comparable, V any](m map[A]map[B]V, a A, b B, value V) {
	if m[a] == nil {
		m[a] = make(map[B]V)
	}
	m[a][b] = value
}

func addNested[A, B comparable](m map[A]map[B]int, a A, b B, n int) {
	if n += m[a][b]; n == 0 {
		dropNested(m, a, b)
		return
	}
	putNested(m, a, b, n)
}

func dropNested[A, B comparable, V any](m map[A]map[B]V, a A, b B) {
	if delete(m[a], b); len(m[a]) == 0 {
		delete(m, a)
	}
}

// markComplete notes that all is there that nodes had reported of a kind when the hub started; it reports whether that is news.
func (x *sightingIndex) markComplete(kind topics.Kind) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	news := !x.completeKinds[kind]
	x.completeKinds[kind] = true
	return news
}

func (x *sightingIndex) isComplete(kinds ...topics.Kind) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !slices.ContainsFunc(kinds, func(k topics.Kind) bool { return !x.completeKinds[k] })
}

// maxSightings bounds the devices of a node and Configuration of which Instances and Devices are made: what a node reports is not the hub's to
// choose. It is the most that limits.devices of edgediscovery may be.
const maxSightings = resource.MaxDiscoveredDevices

// setDevice notes what a node has at a topic; nil: nothing. It returns the names of the Instances that this concerns, and whether the node
// sees its first device of the Configuration now, or none any more, or has come to or below the bound.
func (x *sightingIndex) setDevice(a topics.Address, d *resource.DiscoveredDevice) (names []string, turned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before, excess := x.deviceCounts[a.Device][a.Node], len(x.excess[a.Device][a.Node])
	if was, ok := x.instanceAt[a]; ok {
		names = append(names, was)
		x.removeSighting(a, was)
	}
	x.dropExcess(a)
	switch {
	case d != nil && x.deviceCounts[a.Device][a.Node] >= maxSightings:
		if x.excess[a.Device][a.Node] == nil {
			putNested(x.excess, a.Device, a.Node, make(map[topics.Address]resource.DiscoveredDevice))
		}
		x.excess[a.Device][a.Node][a] = *d
	case d != nil:
		names = x.addSighting(a, *d, names)
	default:
		for next, device := range x.excess[a.Device][a.Node] { // one of those that are left takes the place
			if x.deviceCounts[a.Device][a.Node] < maxSightings {
				x.dropExcess(next)
				names = x.addSighting(next, device, names)
			}
			break
		}
	}
	return names, (before == 0) != (x.deviceCounts[a.Device][a.Node] == 0) || (excess == 0) != (len(x.excess[a.Device][a.Node]) == 0)
}

func (x *sightingIndex) addSighting(a topics.Address, d resource.DiscoveredDevice, names []string) []string {
	name := InstanceName(a.Device, d.ID, a.Node, d.Shared)
	if !slices.Contains(names, name) {
		names = append(names, name)
	}
	x.instanceAt[a] = name
	putNested(x.sightings, name, a, d)
	putNested(x.of, a.Device, name, true)
	addNested(x.deviceCounts, a.Device, a.Node, 1)
	if d.Shared {
		addNested(x.sharedCounts, a.Node, name, 1)
	}
	return names
}

func (x *sightingIndex) dropExcess(a topics.Address) {
	delete(x.excess[a.Device][a.Node], a)
	if len(x.excess[a.Device][a.Node]) == 0 {
		dropNested(x.excess, a.Device, a.Node)
	}
}

func (x *sightingIndex) removeSighting(a topics.Address, name string) {
	delete(x.instanceAt, a)
	addNested(x.deviceCounts, a.Device, a.Node, -1)
	if x.sightings[name][a].Shared {
		addNested(x.sharedCounts, a.Node, name, -1)
	}
	dropNested(x.sightings, name, a)
	if _, made := x.made[name]; !made && len(x.sightings[name]) == 0 {
		dropNested(x.of, a.Device, name)
	}
}

// sightingsOf is what those of some nodes, which are sorted, say of a device that they see, in their order. Of a node that has it at several
// topics the first one counts.
func (x *sightingIndex) sightingsOf(name string, nodes []string) (list []Sighting) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, a := range slices.SortedFunc(maps.Keys(x.sightings[name]), func(a, b topics.Address) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name))
	}) {
		if _, chosen := slices.BinarySearch(nodes, a.Node); chosen && (len(list) == 0 || list[len(list)-1].Node != a.Node) {
			list = append(list, Sighting{a.Node, x.sightings[name][a]})
		}
	}
	return list
}

// uses says whether a node uses one of some Instances.
func (x *sightingIndex) uses(node string, names []string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.ContainsFunc(names, func(name string) bool { return x.users[node][name] })
}

// setHandler notes what a node says of a handler; not there: nothing any more. It reports whether the node says its first thing of any handler
// now, or nothing any more: whether it runs edgediscovery concerns all Configurations.
func (x *sightingIndex) setHandler(a topics.Address, r resource.HandlerReport, there bool) (turned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if there {
		putNested(x.handlerReports, a.Device, a.Node, r)
	} else {
		dropNested(x.handlerReports, a.Device, a.Node)
	}
	return x.setSign(a.Node, "handler/"+a.Device, there)
}

// setDiscoverer notes the presence of a node's edgediscovery, online or offline; not there: it never ran. It reports as handler does.
func (x *sightingIndex) setDiscoverer(node string, there bool) (turned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.setSign(node, "state", there)
}

// setSign notes one sign that a node runs edgediscovery, and reports whether it is the first or was the last. x.mu is held.
func (x *sightingIndex) setSign(node, kind string, there bool) (turned bool) {
	before := len(x.discovererSigns[node])
	if there {
		putNested(x.discovererSigns, node, kind, true)
	} else {
		dropNested(x.discovererSigns, node, kind)
	}
	return (before == 0) != (len(x.discovererSigns[node]) == 0)
}

func (x *sightingIndex) handlers(configuration string) HandlerReports {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := HandlerReports{
		Reports: maps.Clone(x.handlerReports[configuration]), DeviceCounts: maps.Clone(x.deviceCounts[configuration]),
		ExcessCounts: make(map[string]int), Discovers: make(map[string]bool),
	}
	for node, left := range x.excess[configuration] {
		s.ExcessCounts[node] = len(left)
	}
	for node := range x.discovererSigns {
		s.Discovers[node] = true
	}
	return s
}

// load reads all objects, the first time that it is called: what is decided before would take those that are missing for deleted.
func (x *sightingIndex) load(ctx context.Context) error {
	x.loading.Lock()
	defer x.loading.Unlock()
	if x.loaded {
		return nil
	}
	for _, kind := range []string{resource.KindConfiguration, resource.KindInstance} {
		page, err := x.reader.List(ctx, kind, store.ListOptions{})
		if err != nil {
			return err
		}
		for _, o := range page.Items {
			x.refresh(o.Key)
		}
	}
	x.loaded = true
	return nil
}

// refresh reads an object: a watch tells of old versions as well, and two of them in any order.
func (x *sightingIndex) refresh(key store.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	o, err := x.reader.Get(context.Background(), key)
	switch gone := errors.Is(err, resource.NotFound); {
	case err != nil && !gone:
	case key.Kind == resource.KindConfiguration:
		c := new(resource.Configuration)
		if gone || json.Unmarshal(o.Data, c) != nil {
			x.dropConfiguration(key)
			return
		}
		x.setConfiguration(key, c)
	default:
		i := new(resource.Instance)
		if gone || json.Unmarshal(o.Data, i) != nil || !IsManaged(i) {
			x.dropInstance(key)
			return
		}
		if bytes.Contains(o.Status, []byte(resource.ConditionBrokerReady)) {
			_ = json.Unmarshal(o.Status, &i.Status) // if that fails, the next look at it says it again
		}
		x.setInstance(key, i)
	}
}

func (x *sightingIndex) setConfiguration(key store.Key, c *resource.Configuration) {
	x.confs[key.Name] = knownConfiguration{key, c}
	x.dropRefs(key)
	for _, p := range c.Spec.DiscoveryHandler.DiscoveryProperties {
		if ref, _, ok := valueRefOf(p, key.Namespace); ok {
			to := store.Key{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name}
			putNested(x.refs, to, key, true)
			putNested(x.has, key, to, true)
		}
	}
}

func (x *sightingIndex) dropRefs(key store.Key) {
	for to := range x.has[key] {
		dropNested(x.refs, to, key)
	}
	delete(x.has, key)
}

func (x *sightingIndex) dropConfiguration(key store.Key) {
	if x.confs[key.Name].key == key {
		delete(x.confs, key.Name)
	}
	x.dropRefs(key)
}

// configuration is a Configuration as the watch has seen it last, which nobody may change; nil: there is none.
func (x *sightingIndex) configuration(name string) *resource.Configuration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.confs[name].conf
}

func (x *sightingIndex) configurationKey(name string) []store.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c, ok := x.confs[name]; ok {
		return []store.Key{c.key}
	}
	return nil
}

func (x *sightingIndex) configurationKeys() (list []store.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.confs {
		list = append(list, c.key)
	}
	return list
}

func (x *sightingIndex) referring(key store.Key) []store.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.refs[key]))
}

func (x *sightingIndex) setInstance(key store.Key, i *resource.Instance) {
	for _, node := range x.made[key.Name].nodes {
		dropNested(x.users, node, key.Name)
	}
	next := knownInstance{namespace: key.Namespace, configuration: i.Spec.ConfigurationName, broker: findCondition(i.Status.Conditions, resource.ConditionBrokerReady)}
	next.nodes = nodesUsing(i)
	for _, node := range next.nodes {
		putNested(x.users, node, key.Name, true)
	}
	x.made[key.Name] = next
	putNested(x.of, next.configuration, key.Name, true)
}

func (x *sightingIndex) dropInstance(key store.Key) {
	was, had := x.made[key.Name]
	if !had || was.namespace != key.Namespace {
		return
	}
	for _, node := range was.nodes {
		dropNested(x.users, node, key.Name)
	}
	delete(x.made, key.Name)
	if len(x.sightings[key.Name]) == 0 {
		dropNested(x.of, was.configuration, key.Name)
	}
}

// findCondition is the condition of a type; zero: there is none.
func findCondition(list []resource.Condition, kind string) resource.Condition {
	if i := slices.IndexFunc(list, func(c resource.Condition) bool { return c.Type == kind }); i >= 0 {
		return list[i]
	}
	return resource.Condition{}
}

// setBroker notes the condition BrokerReady of an Instance that is made.
func (x *sightingIndex) setBroker(name string, ready resource.Condition) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if made, ok := x.made[name]; ok {
		made.broker = ready
		x.made[name] = made
	}
}

// brokers are the conditions BrokerReady of a Configuration's Instances.
func (x *sightingIndex) brokers(configuration string) map[string]resource.Condition {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make(map[string]resource.Condition)
	for name := range x.of[configuration] {
		if made := x.made[name]; made.broker.Type != "" {
			all[name] = made.broker
		}
	}
	return all
}

// instanceOf is the Configuration of an Instance, and the namespace if it is made.
func (x *sightingIndex) instanceOf(name string) (configuration, namespace string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if i, made := x.made[name]; made {
		return i.configuration, i.namespace
	}
	for a := range x.sightings[name] {
		return a.Device, ""
	}
	return "", ""
}

func (x *sightingIndex) instancesOf(configuration string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.of[configuration]))
}

func (x *sightingIndex) allInstances() (names []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, of := range x.of {
		names = slices.AppendSeq(names, maps.Keys(of))
	}
	return names
}

// count is how many Instances of a Configuration are made.
func (x *sightingIndex) count(configuration string) (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name := range x.of[configuration] {
		if _, made := x.made[name]; made {
			n++
		}
	}
	return n
}

func (x *sightingIndex) usedBy(node string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Sorted(maps.Keys(x.users[node]))
}

// sharedBy are the Instances of shared devices that a node sees.
func (x *sightingIndex) sharedBy(node string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.sharedCounts[node]))
}

func (x *sightingIndex) usersOf(configuration string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	nodes := make(map[string]bool)
	for name := range x.of[configuration] {
		for _, node := range x.made[name].nodes {
			nodes[node] = true
		}
	}
	return slices.Collect(maps.Keys(nodes))
}

// decodedObjects reads objects of a kind, and decodes each version once. Nobody changes what it returns.
type decodedObjects[T any] struct {
	reader store.Reader
	kind   string
	decode func(store.Object) (*T, error)

	mu   sync.Mutex
	read map[string]decodedVersion[T] // by name
}

type decodedVersion[T any] struct {
	rev   uint64
	value *T
}

func newDecodedObjects[T any](reader store.Reader, kind string, decode func(store.Object) (*T, error)) *decodedObjects[T] {
	return &decodedObjects[T]{reader: reader, kind: kind, decode: decode, read: make(map[string]decodedVersion[T])}
}

// get returns an object and its revision; nil: there is none, or it can't be read.
func (d *decodedObjects[T]) get(ctx context.Context, name string) (value *T, rev uint64) {
	o, err := d.reader.Get(ctx, store.Key{Kind: d.kind, Name: name})
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		delete(d.read, name)
		return nil, 0
	}
	if had := d.read[name]; had.value != nil && had.rev == o.Rev {
		return had.value, had.rev
	}
	if value, err = d.decode(o); err != nil {
		return nil, 0
	}
	d.read[name] = decodedVersion[T]{o.Rev, value}
	return value, o.Rev
}

// nodeStates are the labels of all Nodes, and how those are that see or use an Instance.
type nodeStates struct {
	reader store.Reader
	hosts  *decodedObjects[HostState]

	mu     sync.Mutex
	labels map[string]map[string]string // nil: not read yet
	told   map[string]*HostState        // as it was when Instances were last queued for it
}

func newNodeStates(reader store.Reader) *nodeStates {
	return &nodeStates{reader: reader, hosts: newDecodedObjects(reader, resource.KindNode, decodeHost), told: make(map[string]*HostState)}
}

// host is how a Node is now.
func (n *nodeStates) host(name string) *HostState {
	if h, _ := n.hosts.get(context.Background(), name); h != nil {
		return h
	}
	return new(HostState)
}

// turn is how a Node was when turn was last called, nil if it was not since forget, and how it is now.
func (n *nodeStates) turn(name string) (was, now *HostState) {
	now = n.host(name)
	n.mu.Lock()
	defer n.mu.Unlock()
	was, n.told[name] = n.told[name], now
	return was, now
}

func (n *nodeStates) forget(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.told, name)
}

func decodeHost(o store.Object) (*HostState, error) {
	var s struct {
		State           string                       `json:"state"`
		LastSeen        string                       `json:"lastSeen"`
		AgentVersion    string                       `json:"agentVersion"`
		RenderedVersion string                       `json:"renderedVersion"`
		Failed          *resource.FailedVersion      `json:"failed"`
		Applications    []resource.ApplicationStatus `json:"applications"`
		Conditions      []resource.Condition         `json:"conditions"`
	}
	_ = json.Unmarshal(o.Status, &s) // a status that can't be read says nothing
	h := &HostState{Agent: s.AgentVersion != "" || s.RenderedVersion != "", Applications: make(map[string]resource.ApplicationStatus)}
	if s.State != resource.Online {
		h.Offline, _ = resource.ParseTime(s.LastSeen)
	}
	for _, a := range s.Applications {
		h.Applications[a.Name] = resource.ApplicationStatus{Status: a.Status, Message: a.Message}
	}
	if s.Failed != nil {
		h.Problem = "the node could not apply its spec: " + s.Failed.String()
	}
	for _, c := range s.Conditions {
		if c.Type == resource.ConditionSpecRendered && c.Status == "False" {
			h.Problem = "the spec of the node can't be rendered: " + c.Message
		}
	}
	return h, nil
}

// same says whether two states of a Node are the same, as far as they concern an application.
func (h *HostState) same(other *HostState, application string) bool {
	return h.Offline.Equal(other.Offline) && h.Agent == other.Agent && h.Problem == other.Problem && h.Applications[application] == other.Applications[application]
}

// changed reads a Node, and says whether it came, went or has other labels.
func (n *nodeStates) changed(key store.Key) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.labels == nil {
		return true
	}
	was, had := n.labels[key.Name]
	o, err := n.reader.Get(context.Background(), key)
	if err != nil {
		delete(n.labels, key.Name)
		return had && errors.Is(err, resource.NotFound)
	}
	now, ok := decodeLabels(o)
	if !ok || had && maps.Equal(was, now) {
		return false
	}
	n.labels[key.Name] = now
	return true
}

func decodeLabels(o store.Object) (labels map[string]string, ok bool) {
	var n struct {
		Metadata resource.Meta `json:"metadata"`
	}
	err := json.Unmarshal(o.Data, &n)
	return n.Metadata.Labels, err == nil
}

// matching are the names of the Nodes that a selector chooses, sorted.
func (n *nodeStates) matching(ctx context.Context, s *resource.LabelSelector) (list []string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.labels == nil {
		page, err := n.reader.List(ctx, resource.KindNode, store.ListOptions{})
		if err != nil {
			return nil, err
		}
		n.labels = make(map[string]map[string]string, len(page.Items))
		for _, o := range page.Items {
			if labels, ok := decodeLabels(o); ok {
				n.labels[o.Name] = labels
			}
		}
	}
	for name, labels := range n.labels {
		if s.Matches(labels) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list, nil
}

func decodeOrder(stored store.Object) (*Order, error) {
	o := new(Order)
	return o, json.Unmarshal(stored.Data, o)
}

// keyQueue are keys that wait to be queued by a controller.
type keyQueue struct {
	mu      sync.Mutex
	waiting map[store.Key]bool
	wake    chan struct{} // holds a value while some has keys
}

func newKeyQueue() *keyQueue {
	return &keyQueue{waiting: make(map[store.Key]bool), wake: make(chan struct{}, 1)}
}

func (k *keyQueue) add(list ...store.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range list {
		k.waiting[key] = true
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// feed is a source of a controller.
func (k *keyQueue) feed(ctx context.Context, add func(...store.Key)) {
	for {
		select {
		case <-k.wake:
			k.mu.Lock()
			list := slices.Collect(maps.Keys(k.waiting))
			clear(k.waiting)
			k.mu.Unlock()
			add(list...)
		case <-ctx.Done():
			return
		}
	}
}
