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

// index is what watches and reports have told: who sees what, and which objects concern each other. Everything in it comes again
// after a restart.
type index struct {
	reader store.Reader

	mu    sync.Mutex
	whole map[topics.Kind]bool // all that nodes had reported when the hub started is in it

	loading sync.Mutex
	loaded  bool // all objects were read once

	at       map[topics.Address]string // the Instance that a report is about
	seenAt   map[string]map[topics.Address]resource.DiscoveredDevice
	finding  map[string]map[string]int                                          // by Configuration and node: how many devices it sees, maxFound at most
	beyond   map[string]map[string]map[topics.Address]resource.DiscoveredDevice // by Configuration and node: those that are more
	sharing  map[string]map[string]int                                          // by node and Instance: at how many topics it reports a shared device
	handling map[string]map[string]resource.HandlerReport                       // by Configuration and node

	confs map[string]known                 // by name
	made  map[string]instance              // by name
	of    map[string]map[string]bool       // by Configuration: names of its Instances, made or seen
	runs  map[string]map[string]bool       // by node: by what it is known that it runs edgediscovery: a handler that it reports, or its presence
	users map[string]map[string]bool       // by node: names of the Instances that it uses
	refs  map[store.Key]map[store.Key]bool // by Secret or ConfigMap: the Configurations that refer to it
	has   map[store.Key]map[store.Key]bool // the other way round
}

type known struct {
	key  store.Key
	conf *resource.Configuration
}

type instance struct {
	namespace, configuration string
	nodes                    []string
	broker                   resource.Condition // BrokerReady; zero: it has none
}

func newIndex(reader store.Reader) *index {
	return &index{
		reader: reader, whole: make(map[topics.Kind]bool),
		at: make(map[topics.Address]string), seenAt: make(map[string]map[topics.Address]resource.DiscoveredDevice),
		finding: make(map[string]map[string]int), beyond: make(map[string]map[string]map[topics.Address]resource.DiscoveredDevice), sharing: make(map[string]map[string]int), handling: make(map[string]map[string]resource.HandlerReport),
		confs: make(map[string]known), made: make(map[string]instance), of: make(map[string]map[string]bool), runs: make(map[string]map[string]bool), users: make(map[string]map[string]bool),
		refs: make(map[store.Key]map[store.Key]bool), has: make(map[store.Key]map[store.Key]bool),
	}
}

// put, add and drop change a map of maps, of which none is empty.
func put[A, B comparable, V any](m map[A]map[B]V, a A, b B, value V) {
	if m[a] == nil {
		m[a] = make(map[B]V)
	}
	m[a][b] = value
}

func add[A, B comparable](m map[A]map[B]int, a A, b B, n int) {
	if n += m[a][b]; n == 0 {
		drop(m, a, b)
		return
	}
	put(m, a, b, n)
}

func drop[A, B comparable, V any](m map[A]map[B]V, a A, b B) {
	if delete(m[a], b); len(m[a]) == 0 {
		delete(m, a)
	}
}

// complete notes that all is there that nodes had reported of a kind when the hub started; it reports whether that is news.
func (x *index) complete(kind topics.Kind) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	news := !x.whole[kind]
	x.whole[kind] = true
	return news
}

func (x *index) isComplete(kinds ...topics.Kind) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !slices.ContainsFunc(kinds, func(k topics.Kind) bool { return !x.whole[k] })
}

// maxFound bounds the devices of a node and Configuration of which Instances and Devices are made: what a node reports is not the hub's to
// choose. It is the most that limits.devices of edgediscovery may be.
const maxFound = resource.MaxDiscoveredDevices

// sight notes what a node has at a topic; nil: nothing. It returns the names of the Instances that this concerns, and whether the node
// sees its first device of the Configuration now, or none any more, or has come to or below the bound.
func (x *index) sight(a topics.Address, d *resource.DiscoveredDevice) (names []string, turned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before, excess := x.finding[a.Device][a.Node], len(x.beyond[a.Device][a.Node])
	if was, ok := x.at[a]; ok {
		names = append(names, was)
		x.unsee(a, was)
	}
	x.dropBeyond(a)
	switch {
	case d != nil && x.finding[a.Device][a.Node] >= maxFound:
		if x.beyond[a.Device][a.Node] == nil {
			put(x.beyond, a.Device, a.Node, make(map[topics.Address]resource.DiscoveredDevice))
		}
		x.beyond[a.Device][a.Node][a] = *d
	case d != nil:
		names = x.see(a, *d, names)
	default:
		for next, device := range x.beyond[a.Device][a.Node] { // one of those that are left takes the place
			if x.finding[a.Device][a.Node] < maxFound {
				x.dropBeyond(next)
				names = x.see(next, device, names)
			}
			break
		}
	}
	return names, (before == 0) != (x.finding[a.Device][a.Node] == 0) || (excess == 0) != (len(x.beyond[a.Device][a.Node]) == 0)
}

func (x *index) see(a topics.Address, d resource.DiscoveredDevice, names []string) []string {
	name := Name(a.Device, d.ID, a.Node, d.Shared)
	if !slices.Contains(names, name) {
		names = append(names, name)
	}
	x.at[a] = name
	put(x.seenAt, name, a, d)
	put(x.of, a.Device, name, true)
	add(x.finding, a.Device, a.Node, 1)
	if d.Shared {
		add(x.sharing, a.Node, name, 1)
	}
	return names
}

func (x *index) dropBeyond(a topics.Address) {
	delete(x.beyond[a.Device][a.Node], a)
	if len(x.beyond[a.Device][a.Node]) == 0 {
		drop(x.beyond, a.Device, a.Node)
	}
}

func (x *index) unsee(a topics.Address, name string) {
	delete(x.at, a)
	add(x.finding, a.Device, a.Node, -1)
	if x.seenAt[name][a].Shared {
		add(x.sharing, a.Node, name, -1)
	}
	drop(x.seenAt, name, a)
	if _, made := x.made[name]; !made && len(x.seenAt[name]) == 0 {
		drop(x.of, a.Device, name)
	}
}

// seen is what those of some nodes, which are sorted, say of a device that they see, in their order. Of a node that has it at several
// topics the first one counts.
func (x *index) seen(name string, nodes []string) (list []Sighting) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, a := range slices.SortedFunc(maps.Keys(x.seenAt[name]), func(a, b topics.Address) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name))
	}) {
		if _, chosen := slices.BinarySearch(nodes, a.Node); chosen && (len(list) == 0 || list[len(list)-1].Node != a.Node) {
			list = append(list, Sighting{a.Node, x.seenAt[name][a]})
		}
	}
	return list
}

// uses says whether a node uses one of some Instances.
func (x *index) uses(node string, names []string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.ContainsFunc(names, func(name string) bool { return x.users[node][name] })
}

// handler notes what a node says of a handler; not there: nothing any more. It reports whether the node says its first thing of any handler
// now, or nothing any more: whether it runs edgediscovery concerns all Configurations.
func (x *index) handler(a topics.Address, r resource.HandlerReport, there bool) (turned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if there {
		put(x.handling, a.Device, a.Node, r)
	} else {
		drop(x.handling, a.Device, a.Node)
	}
	return x.sign(a.Node, "handler/"+a.Device, there)
}

// discoverer notes the presence of a node's edgediscovery, online or offline; not there: it never ran. It reports as handler does.
func (x *index) discoverer(node string, there bool) (turned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sign(node, "state", there)
}

// sign notes one sign that a node runs edgediscovery, and reports whether it is the first or was the last. x.mu is held.
func (x *index) sign(node, kind string, there bool) (turned bool) {
	before := len(x.runs[node])
	if there {
		put(x.runs, node, kind, true)
	} else {
		drop(x.runs, node, kind)
	}
	return (before == 0) != (len(x.runs[node]) == 0)
}

func (x *index) handlers(configuration string) HandlerState {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := HandlerState{
		Reports: maps.Clone(x.handling[configuration]), Finding: maps.Clone(x.finding[configuration]),
		Beyond: make(map[string]int), Discovers: make(map[string]bool),
	}
	for node, left := range x.beyond[configuration] {
		s.Beyond[node] = len(left)
	}
	for node := range x.runs {
		s.Discovers[node] = true
	}
	return s
}

// load reads all objects, the first time that it is called: what is decided before would take those that are missing for deleted.
func (x *index) load(ctx context.Context) error {
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
func (x *index) refresh(key store.Key) {
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
		if gone || json.Unmarshal(o.Data, i) != nil || !Managed(i) {
			x.dropInstance(key)
			return
		}
		if bytes.Contains(o.Status, []byte(resource.ConditionBrokerReady)) {
			_ = json.Unmarshal(o.Status, &i.Status) // if that fails, the next look at it says it again
		}
		x.setInstance(key, i)
	}
}

func (x *index) setConfiguration(key store.Key, c *resource.Configuration) {
	x.confs[key.Name] = known{key, c}
	x.dropRefs(key)
	for _, p := range c.Spec.DiscoveryHandler.DiscoveryProperties {
		if ref, _, ok := refOf(p, key.Namespace); ok {
			to := store.Key{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name}
			put(x.refs, to, key, true)
			put(x.has, key, to, true)
		}
	}
}

func (x *index) dropRefs(key store.Key) {
	for to := range x.has[key] {
		drop(x.refs, to, key)
	}
	delete(x.has, key)
}

func (x *index) dropConfiguration(key store.Key) {
	if x.confs[key.Name].key == key {
		delete(x.confs, key.Name)
	}
	x.dropRefs(key)
}

// configuration is a Configuration as the watch has seen it last, which nobody may change; nil: there is none.
func (x *index) configuration(name string) *resource.Configuration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.confs[name].conf
}

func (x *index) configurationKey(name string) []store.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c, ok := x.confs[name]; ok {
		return []store.Key{c.key}
	}
	return nil
}

func (x *index) configurationKeys() (list []store.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.confs {
		list = append(list, c.key)
	}
	return list
}

func (x *index) referring(key store.Key) []store.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.refs[key]))
}

func (x *index) setInstance(key store.Key, i *resource.Instance) {
	for _, node := range x.made[key.Name].nodes {
		drop(x.users, node, key.Name)
	}
	next := instance{namespace: key.Namespace, configuration: i.Spec.ConfigurationName, broker: conditionOf(i.Status.Conditions, resource.ConditionBrokerReady)}
	next.nodes = usersOf(i)
	for _, node := range next.nodes {
		put(x.users, node, key.Name, true)
	}
	x.made[key.Name] = next
	put(x.of, next.configuration, key.Name, true)
}

func (x *index) dropInstance(key store.Key) {
	was, had := x.made[key.Name]
	if !had || was.namespace != key.Namespace {
		return
	}
	for _, node := range was.nodes {
		drop(x.users, node, key.Name)
	}
	delete(x.made, key.Name)
	if len(x.seenAt[key.Name]) == 0 {
		drop(x.of, was.configuration, key.Name)
	}
}

// conditionOf is the condition of a type; zero: there is none.
func conditionOf(list []resource.Condition, kind string) resource.Condition {
	if i := slices.IndexFunc(list, func(c resource.Condition) bool { return c.Type == kind }); i >= 0 {
		return list[i]
	}
	return resource.Condition{}
}

// setBroker notes the condition BrokerReady of an Instance that is made.
func (x *index) setBroker(name string, ready resource.Condition) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if made, ok := x.made[name]; ok {
		made.broker = ready
		x.made[name] = made
	}
}

// brokers are the conditions BrokerReady of a Configuration's Instances.
func (x *index) brokers(configuration string) map[string]resource.Condition {
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
func (x *index) instanceOf(name string) (configuration, namespace string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if i, made := x.made[name]; made {
		return i.configuration, i.namespace
	}
	for a := range x.seenAt[name] {
		return a.Device, ""
	}
	return "", ""
}

func (x *index) instancesOf(configuration string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.of[configuration]))
}

func (x *index) allInstances() (names []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, of := range x.of {
		names = slices.AppendSeq(names, maps.Keys(of))
	}
	return names
}

// count is how many Instances of a Configuration are made.
func (x *index) count(configuration string) (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name := range x.of[configuration] {
		if _, made := x.made[name]; made {
			n++
		}
	}
	return n
}

func (x *index) usedBy(node string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Sorted(maps.Keys(x.users[node]))
}

// sharedBy are the Instances of shared devices that a node sees.
func (x *index) sharedBy(node string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.sharing[node]))
}

func (x *index) usersOf(configuration string) []string {
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

// decoded reads objects of a kind, and decodes each version once. Nobody changes what it returns.
type decoded[T any] struct {
	reader store.Reader
	kind   string
	decode func(store.Object) (*T, error)

	mu   sync.Mutex
	read map[string]version[T] // by name
}

type version[T any] struct {
	rev   uint64
	value *T
}

func newDecoded[T any](reader store.Reader, kind string, decode func(store.Object) (*T, error)) *decoded[T] {
	return &decoded[T]{reader: reader, kind: kind, decode: decode, read: make(map[string]version[T])}
}

// get returns an object and its revision; nil: there is none, or it can't be read.
func (d *decoded[T]) get(ctx context.Context, name string) (value *T, rev uint64) {
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
	d.read[name] = version[T]{o.Rev, value}
	return value, o.Rev
}

// nodes are the labels of all Nodes, and how those are that see or use an Instance.
type nodes struct {
	reader store.Reader
	hosts  *decoded[Host]

	mu     sync.Mutex
	labels map[string]map[string]string // nil: not read yet
	told   map[string]*Host             // as it was when Instances were last queued for it
}

func newNodes(reader store.Reader) *nodes {
	return &nodes{reader: reader, hosts: newDecoded(reader, resource.KindNode, hostOf), told: make(map[string]*Host)}
}

// host is how a Node is now.
func (n *nodes) host(name string) *Host {
	if h, _ := n.hosts.get(context.Background(), name); h != nil {
		return h
	}
	return new(Host)
}

// turn is how a Node was when turn was last called, nil if it was not since forget, and how it is now.
func (n *nodes) turn(name string) (was, now *Host) {
	now = n.host(name)
	n.mu.Lock()
	defer n.mu.Unlock()
	was, n.told[name] = n.told[name], now
	return was, now
}

func (n *nodes) forget(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.told, name)
}

func hostOf(o store.Object) (*Host, error) {
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
	h := &Host{Agent: s.AgentVersion != "" || s.RenderedVersion != "", Applications: make(map[string]resource.ApplicationStatus)}
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
func (h *Host) same(other *Host, application string) bool {
	return h.Offline.Equal(other.Offline) && h.Agent == other.Agent && h.Problem == other.Problem && h.Applications[application] == other.Applications[application]
}

// changed reads a Node, and says whether it came, went or has other labels.
func (n *nodes) changed(key store.Key) bool {
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
	now, ok := labelsOf(o)
	if !ok || had && maps.Equal(was, now) {
		return false
	}
	n.labels[key.Name] = now
	return true
}

func labelsOf(o store.Object) (labels map[string]string, ok bool) {
	var n struct {
		Metadata resource.Meta `json:"metadata"`
	}
	err := json.Unmarshal(o.Data, &n)
	return n.Metadata.Labels, err == nil
}

// matching are the names of the Nodes that a selector chooses, sorted.
func (n *nodes) matching(ctx context.Context, s *resource.LabelSelector) (list []string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.labels == nil {
		page, err := n.reader.List(ctx, resource.KindNode, store.ListOptions{})
		if err != nil {
			return nil, err
		}
		n.labels = make(map[string]map[string]string, len(page.Items))
		for _, o := range page.Items {
			if labels, ok := labelsOf(o); ok {
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

func orderOf(stored store.Object) (*Order, error) {
	o := new(Order)
	return o, json.Unmarshal(stored.Data, o)
}

// keys are keys that wait to be queued by a controller.
type keys struct {
	mu   sync.Mutex
	some map[store.Key]bool
	wake chan struct{} // holds a value while some has keys
}

func newKeys() *keys { return &keys{some: make(map[store.Key]bool), wake: make(chan struct{}, 1)} }

func (k *keys) add(list ...store.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range list {
		k.some[key] = true
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// feed is a source of a controller.
func (k *keys) feed(ctx context.Context, add func(...store.Key)) {
	for {
		select {
		case <-k.wake:
			k.mu.Lock()
			list := slices.Collect(maps.Keys(k.some))
			clear(k.some)
			k.mu.Unlock()
			add(list...)
		case <-ctx.Done():
			return
		}
	}
}
