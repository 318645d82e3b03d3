// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Report is what a node has at a topic now; Value is nil when it is nothing any more.
type Report struct {
	topics.Address
	Value []byte
}

// Reports is a watch of what nodes report at the topics of a kind: of all that is there first, then of what changes.
type Reports interface {
	// Next waits for reports. Its only error is that of the context.
	Next(ctx context.Context) ([]Report, error)
	// Waiting is how many Next has not returned yet.
	Waiting() int
	Close()
}

// Options are what the controllers of discovery need.
type Options struct {
	Objects *objects.Registry
	Reader  store.Reader
	// Writer has the records of Orders and applications.
	Writer store.Writer
	// Reports begins a watch of what nodes report.
	Reports func(kind topics.Kind) Reports
	// Record records an Event.
	Record func(resource.Occurrence)
	Log    zerolog.Logger
	// Pause is the least time between two looks at a Configuration: what its nodes report meanwhile is seen in one; 0: 200 ms.
	Pause time.Duration
	// Retry is how long after its name was taken, or the API refused it, a Device is tried again; 0: 30 s.
	Retry time.Duration
	Now   func() time.Time // nil: time.Now
}

// workers is how many Instances are looked at at a time: they share commits of the store.
const workers = 16

// Controllers makes the controllers: one for Configurations, one for Instances and their Devices, one for the applications of nodes.
func Controllers(o Options) []control.Controller {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Pause, o.Retry = cmp.Or(o.Pause, 200*time.Millisecond), cmp.Or(o.Retry, 30*time.Second)
	c := &controller{
		Options: o, as: o.Objects.Controller("discovery"), seen: newSightingIndex(), known: newObjectIndexes(),
		configurations: newKeyQueue(), instances: newKeyQueue(), brokers: newKeyQueue(), started: o.Now(),
	}
	return []control.Controller{
		{
			Name: "discovery", Workers: 2, Reconcile: c.reconcileConfiguration, Pause: o.Pause, Indexes: c.known.all(),
			Watches: []control.Watch{
				{Kind: resource.KindConfiguration, DataOnly: true},
				{Kind: resource.KindNode, DataOnly: true, Same: sameLabels, Changes: func(_, _ *store.Object) []store.Key { return c.known.configurations.Keys() }},
				{Kind: resource.KindSecret, Keys: c.referring},
				{Kind: resource.KindConfigMap, Keys: c.referring},
				{Kind: resource.KindInstance, Same: func(before, now store.Object) bool { return brokerCondition(before) == brokerCondition(now) }, Keys: c.configurationOf},
			},
			Sources: []func(context.Context, func(...store.Key)){c.configurations.feed, c.followHandlers, c.followDiscoverers},
		},
		{
			Name: "discovery-instances", Workers: workers, Reconcile: c.reconcileInstance, Indexes: c.known.all(),
			Watches: []control.Watch{
				{Kind: resource.KindInstance, DataOnly: true, Keys: func(o store.Object) []store.Key { return []store.Key{instanceKey(o.Name)} }},
				{Kind: resource.KindConfiguration, DataOnly: true, Keys: c.instancesOf},
				{Kind: OrderKind, Keys: c.instancesOf},
				{Kind: resource.KindDevice, DataOnly: true, Keys: instanceOfDevice},
				{Kind: resource.KindNode, Changes: c.instancesOfNode},
				{Kind: ProblemsKind, Keys: func(o store.Object) []store.Key { return instanceKeys(c.known.usedBy(o.Name)) }},
			},
			Sources: []func(context.Context, func(...store.Key)){c.followInstances, c.instances.feed},
		},
		{
			Name: "discovery-brokers", Workers: 4, Reconcile: c.reconcileApplications, Pause: o.Pause, Indexes: c.known.all(),
			Watches: []control.Watch{
				{Kind: resource.KindInstance, DataOnly: true, Keys: nodesOfInstance},
				{Kind: resource.KindConfiguration, DataOnly: true, Keys: func(o store.Object) []store.Key { return applicationKeys(c.known.nodesOf(o.Name)) }},
				{Kind: ApplicationsKind},
			},
			Sources: []func(context.Context, func(...store.Key)){c.brokers.feed},
		},
	}
}

type controller struct {
	Options
	as    *objects.Controller
	seen  *sightingIndex
	known objectIndexes
	// These are keys that a change of something else than an object concerns.
	configurations, instances, brokers *keyQueue
	started                            time.Time // when they were made
}

func orderKey(configuration string) store.Key {
	return store.Key{Kind: OrderKind, Name: configuration}
}

// instanceKey is the key by which an Instance is queued: names of Configurations are unique, and those of their Instances, too.
func instanceKey(name string) store.Key { return store.Key{Kind: resource.KindInstance, Name: name} }

func instanceKeys(names []string) (list []store.Key) {
	for _, name := range names {
		list = append(list, instanceKey(name))
	}
	return list
}

// The keys that changes concern.

func (c *controller) referring(o store.Object) []store.Key {
	return c.known.configurations.Referring(o.Key)
}

// configurationOf is the Configuration of an Instance that it was made for.
func (c *controller) configurationOf(o store.Object) []store.Key {
	if known, _, ok := indexInstance(o); ok {
		return c.known.configurationKey(known.configuration)
	}
	return nil
}

// instancesOf are the Instances of a Configuration or its Order, made or seen.
func (c *controller) instancesOf(o store.Object) []store.Key {
	return instanceKeys(c.instanceNames(o.Name))
}

func (c *controller) instanceNames(configuration string) []string {
	names := append(c.known.made(configuration), c.seen.instancesOf(configuration)...)
	slices.Sort(names)
	return slices.Compact(names)
}

// instanceOf is the Configuration of an Instance, and the namespace if it was made.
func (c *controller) instanceOf(name string) (configuration, namespace string) {
	if i, namespace := c.known.instance(name); namespace != "" {
		return i.configuration, namespace
	}
	return c.seen.configurationOf(name), ""
}

func instanceOfDevice(o store.Object) []store.Key {
	var d struct {
		Metadata resource.Meta `json:"metadata"`
	}
	if !bytes.Contains(o.Data, []byte(instanceAnnotation)) || json.Unmarshal(o.Data, &d) != nil || d.Metadata.Annotations[instanceAnnotation] == "" {
		return nil
	}
	return []store.Key{instanceKey(d.Metadata.Annotations[instanceAnnotation])}
}

// instancesOfNode are the Instances for which a change of a node matters: those of shared devices that it sees, if it has come or gone, and
// those of the brokers that it runs.
func (c *controller) instancesOfNode(before, now *store.Object) (list []store.Key) {
	node := cmp.Or(now, before).Name
	used, shared := c.known.usedBy(node), c.seen.sharedBy(node)
	if len(used)+len(shared) == 0 {
		return nil
	}
	var was, is HostState
	if before != nil {
		was = *decodeHost(before.Status)
	}
	if now != nil {
		is = *decodeHost(now.Status)
	}
	for _, name := range used {
		configuration, _ := c.instanceOf(name)
		if conf := c.known.configuration(configuration); conf == nil || len(conf.Spec.BrokerSpec) == 0 {
			continue
		}
		if before == nil || !was.same(&is, brokerApplicationName(configuration, name)) {
			list = append(list, instanceKey(name))
		}
	}
	if before == nil || !was.Offline.Equal(is.Offline) {
		list = append(list, instanceKeys(shared)...)
	}
	return list
}

// followInstances has the index follow what nodes find.
func (c *controller) followInstances(ctx context.Context, add func(...store.Key)) {
	r := c.Reports(topics.KindInstance)
	defer r.Close()
	for {
		if r.Waiting() == 0 && c.seen.markComplete(topics.KindInstance) { // what was not seen until now is not there
			add(instanceKeys(append(c.seen.allInstances(), keyNames(c.known.instances.Keys())...))...)
			c.configurations.add(c.known.configurations.Keys()...)
		}
		list, err := r.Next(ctx)
		if err != nil {
			return
		}
		for _, one := range list {
			add(instanceKeys(c.noteSighting(one))...)
		}
	}
}

// noteSighting notes a report, and returns the names of the Instances that it concerns.
func (c *controller) noteSighting(r Report) (names []string) {
	var device *resource.DiscoveredDevice
	if r.Value != nil {
		if d, err := resource.ParseDiscoveredDevice(r.Name, r.Value); err == nil { // the node's core has checked it
			device = &d
		}
	}
	names, turned := c.seen.setDevice(r.Address, device)
	if turned {
		c.configurations.add(c.known.configurationKey(r.Device)...)
	}
	if c.known.uses(r.Node, names) {
		c.brokers.add(store.Key{Kind: ApplicationsKind, Name: r.Node})
	}
	return names
}

// followHandlers has the index follow what nodes say of handlers.
func (c *controller) followHandlers(ctx context.Context, add func(...store.Key)) {
	r := c.Reports(topics.KindDiscoveryHandler)
	defer r.Close()
	for {
		if r.Waiting() == 0 && c.seen.markComplete(topics.KindDiscoveryHandler) {
			add(c.known.configurations.Keys()...)
		}
		list, err := r.Next(ctx)
		if err != nil {
			return
		}
		for _, one := range list {
			report, err := resource.ParseHandlerReport(one.Value)
			if c.seen.setHandler(one.Address, report, err == nil) {
				add(c.known.configurations.Keys()...)
			} else {
				add(c.known.configurationKey(one.Device)...)
			}
		}
	}
}

// followDiscoverers has the index follow which nodes run edgediscovery, whatever its handlers are.
func (c *controller) followDiscoverers(ctx context.Context, add func(...store.Key)) {
	r := c.Reports(topics.KindDiscovererState)
	defer r.Close()
	for {
		list, err := r.Next(ctx)
		if err != nil {
			return
		}
		for _, one := range list {
			if c.seen.setDiscoverer(one.Node, one.Value != nil) {
				add(c.known.configurations.Keys()...)
			}
		}
	}
}

// reconcileConfiguration gives nodes what a Configuration has them look for, and says how that goes.
func (c *controller) reconcileConfiguration(ctx context.Context, key store.Key) (time.Duration, error) {
	conf, err := objects.Get[resource.Configuration](ctx, c.as, key)
	if errors.Is(err, resource.NotFound) {
		return 0, c.dropOrder(ctx, key, "")
	}
	if err != nil {
		return 0, err
	}
	if conf.Metadata.DeletionTimestamp != nil {
		return c.release(ctx, key, conf)
	}
	if !slices.Contains(conf.Metadata.Finalizers, finalizer) {
		err = objects.Update(ctx, c.as, key, func(conf *resource.Configuration) error {
			addFinalizer(&conf.Metadata)
			return nil
		})
		if err == nil {
			conf, err = objects.Get[resource.Configuration](ctx, c.as, key)
		}
		if err != nil {
			return 0, store.IgnoreNotFound(err)
		}
	}
	order, problem, err := PlanOrder(conf, c.known.matching(conf.Spec.NodeSelector), func(ref ValueRef) (Value, error) { return c.value(ctx, ref) })
	if err != nil {
		return 0, err
	}
	if problem == "" {
		err = c.putRecord(ctx, orderKey(key.Name), order)
	} else if was, ok := c.known.orders.Get(orderKey(key.Name)); ok {
		order = *was // it stays in force
	}
	if err != nil {
		return 0, err
	}
	return 0, c.showConfiguration(ctx, key, order, problem)
}

// value is what is known of a value of a Secret or ConfigMap.
func (c *controller) value(ctx context.Context, ref ValueRef) (v Value, err error) {
	raw, version, err := readValue(ctx, c.as, ref)
	if errors.Is(err, resource.NotFound) {
		return v, nil
	}
	return Value{Found: err == nil, Version: version, Size: len(raw)}, err
}

// readValue reads a value; NotFound: there is none.
func readValue(ctx context.Context, reader *objects.Controller, ref ValueRef) (raw []byte, version string, err error) {
	key := store.Key{Namespace: ref.Namespace, Name: ref.Name}
	found := false
	if ref.Kind == resource.KindSecret {
		s, err := objects.Get[resource.Secret](ctx, reader, key)
		if err != nil {
			return nil, "", err
		}
		raw, found = s.Data[ref.Key]
		version = s.Version()
	} else {
		m, err := objects.Get[resource.ConfigMap](ctx, reader, key)
		if err != nil {
			return nil, "", err
		}
		var text string
		if text, found = m.Data[ref.Key]; found {
			raw = []byte(text)
		} else {
			raw, found = m.BinaryData[ref.Key]
		}
		version, _ = hashJSON(raw) // bytes
	}
	if !found {
		return nil, "", resource.Errorf(resource.NotFound, "", "there is no %s in %s %s", ref.Key, ref.Kind, key)
	}
	return raw, version, nil
}

// SecretValues is the payload of secrets/discovery/{configuration} for an order. What is not there any more is left out: the order is
// about to change.
func SecretValues(ctx context.Context, reader *objects.Controller, o Order) ([]byte, error) {
	values := resource.SecretValues{Version: o.Request.Secrets, Data: map[string][]byte{}}
	for _, ref := range o.Values {
		raw, _, err := readValue(ctx, reader, ref)
		switch {
		case err == nil:
			values.Data[ref.Property] = raw
		case !errors.Is(err, resource.NotFound):
			return nil, err
		}
	}
	return json.Marshal(values)
}

// putRecord writes a record unless it is so already.
func (c *controller) putRecord(ctx context.Context, key store.Key, record any) error {
	data, err := json.Marshal(record)
	if err != nil {
		return err
	}
	was, err := c.Reader.Get(ctx, key)
	if store.IgnoreNotFound(err) != nil || err == nil && string(was.Data) == string(data) {
		return store.IgnoreNotFound(err)
	}
	return store.Put(ctx, c.Writer, store.Object{Key: key, Data: data}, was.Rev)
}

// dropOrder deletes the order of a Configuration that is gone, if it is that one's.
func (c *controller) dropOrder(ctx context.Context, key store.Key, uid string) error {
	stored, err := c.Reader.Get(ctx, orderKey(key.Name))
	if err != nil {
		return store.IgnoreNotFound(err)
	}
	var was Order
	if json.Unmarshal(stored.Data, &was) != nil || was.Namespace != key.Namespace || uid != "" && was.UID != uid {
		return nil
	}
	_, err = c.Writer.Delete(ctx, stored.Key, stored.Rev)
	return store.IgnoreNotFound(err)
}

// release lets a Configuration go once its Instances are gone.
func (c *controller) release(ctx context.Context, key store.Key, conf *resource.Configuration) (time.Duration, error) {
	if !slices.Contains(conf.Metadata.Finalizers, finalizer) {
		return 0, nil
	}
	if err := c.dropOrder(ctx, key, conf.Metadata.UID); err != nil {
		return 0, err
	}
	for _, name := range c.instanceNames(key.Name) {
		i, err := objects.Get[resource.Instance](ctx, c.as, store.Key{Namespace: key.Namespace, Name: name})
		if err == nil && IsManaged(i) {
			c.instances.add(instanceKey(name))
			return time.Second, nil
		}
		if err != nil && !errors.Is(err, resource.NotFound) {
			return 0, err
		}
	}
	err := objects.Update(ctx, c.as, key, func(conf *resource.Configuration) error {
		removeFinalizer(&conf.Metadata)
		return nil
	})
	return 0, store.IgnoreNotFound(err)
}

// addFinalizer and removeFinalizer set and remove the finalizer.
func addFinalizer(m *resource.Meta) {
	if m.DeletionTimestamp == nil && !slices.Contains(m.Finalizers, finalizer) {
		m.Finalizers = append(m.Finalizers, finalizer)
	}
}

func removeFinalizer(m *resource.Meta) {
	m.Finalizers = slices.DeleteFunc(slices.Clone(m.Finalizers), func(f string) bool { return f == finalizer })
}

func (c *controller) showConfiguration(ctx context.Context, key store.Key, o Order, problem string) error {
	if !c.seen.isComplete(topics.KindInstance, topics.KindDiscoveryHandler) {
		return nil // it is queued again
	}
	handlers, brokers := c.seen.handlers(key.Name), c.known.brokers(key.Name)
	err := objects.UpdateStatus(ctx, c.as, key, func(conf *resource.Configuration) error {
		list, m, now := slices.Clone(conf.Status.Conditions), conf.Metadata, c.Now()
		if problem != "" {
			list = setCondition(list, m, now, resource.ConditionPropertiesResolved, false, "Unresolved", "nodes keep what they were told before: "+problem)
		} else if len(conf.Spec.DiscoveryHandler.DiscoveryProperties) > 0 {
			list = setCondition(list, m, now, resource.ConditionPropertiesResolved, true, "Resolved", "")
		}
		handlers.Selected = !conf.Spec.NodeSelector.Empty()
		list = HandlerConditions(list, m, o, handlers, now)
		accept := func(kind, reason, message string, err error) {
			if err != nil {
				reason, message = "Invalid", err.Error()
			}
			list = setCondition(list, m, now, kind, err == nil, reason, message)
		}
		if t := conf.Spec.DeviceTemplate; t != nil {
			accept(resource.ConditionTemplateAccepted, "Accepted", "", CheckTemplate(t))
		}
		if len(conf.Spec.BrokerSpec) > 0 {
			left, err := UnsupportedFields(conf.Spec.BrokerSpec)
			if len(left) > 0 {
				accept(resource.ConditionBrokerAccepted, "Partly", "nodes don't do: "+objects.JoinFirst(left), err)
			} else {
				accept(resource.ConditionBrokerAccepted, "Accepted", "", err)
			}
			list = resource.SetCondition(list, configurationBrokerCondition(m, brokers), now)
		} else {
			list = withoutCondition(list, resource.ConditionBrokerReady)
		}
		conf.Status.Conditions, conf.Status.Instances, conf.Status.Nodes = list, len(c.known.made(key.Name)), len(o.Nodes)
		return nil
	})
	return store.IgnoreNotFound(err)
}

// reconcileInstance makes an Instance what nodes say, and the Device that its Configuration wants of it.
func (c *controller) reconcileInstance(ctx context.Context, key store.Key) (time.Duration, error) {
	if !c.seen.isComplete(topics.KindInstance) {
		return 0, nil // it is queued again
	}
	s, err := c.instanceState(ctx, key.Name)
	if err != nil {
		return 0, err
	}
	p := PlanInstance(s)
	switch {
	case p.Delete:
		return c.removeInstance(ctx, s)
	case p.Instance == nil:
		return 0, nil
	}
	i, err := c.writeInstance(ctx, s, p.Instance)
	t := s.Configuration.Spec.DeviceTemplate
	if err != nil || t == nil && resource.ConditionOf(i.Status.Conditions, resource.ConditionOnboarded).Type == "" {
		return p.Again, store.IgnoreNotFound(err)
	}
	again, err := c.onboard(ctx, t, i)
	if p.Again > 0 && (again == 0 || p.Again < again) {
		again = p.Again
	}
	return again, err
}

// instanceState reads what PlanInstance decides by.
func (c *controller) instanceState(ctx context.Context, name string) (s InstanceState, err error) {
	configuration, namespace := c.instanceOf(name)
	s = InstanceState{Name: name, HubStarted: c.started, Now: c.Now()}
	conf := c.known.configuration(configuration)
	if conf != nil && conf.Metadata.DeletionTimestamp == nil {
		s.Configuration, namespace = conf, cmp.Or(namespace, conf.Metadata.Namespace)
	}
	if namespace == "" {
		return s, nil
	}
	i, err := objects.Get[resource.Instance](ctx, c.as, store.Key{Namespace: namespace, Name: name})
	if err == nil {
		s.Instance = i
	} else if !errors.Is(err, resource.NotFound) {
		return s, err
	}
	if s.Configuration != nil {
		if order, ok := c.known.orders.Get(orderKey(configuration)); ok {
			s.Sightings = c.seen.sightingsOf(name, order.Nodes)
		}
		if s.Hosts, err = c.hosts(ctx, s); err != nil {
			return s, err
		}
	}
	return s, nil
}

// hosts are the nodes that see an Instance or used it until now.
func (c *controller) hosts(ctx context.Context, s InstanceState) (all map[string]HostState, err error) {
	all = make(map[string]HostState)
	for _, one := range s.Sightings {
		all[one.Node] = HostState{}
	}
	if s.Instance != nil {
		for _, node := range s.Instance.Spec.DeviceUsage {
			all[node] = HostState{}
		}
	}
	delete(all, "") // of slots that no node has
	for node := range all {
		h := *c.known.host(node)
		problems, err := c.Reader.Get(ctx, store.Key{Kind: ProblemsKind, Name: node})
		if err == nil {
			err = json.Unmarshal(problems.Data, &h.LeftOut)
		}
		if store.IgnoreNotFound(err) != nil {
			return nil, err
		}
		all[node] = h
	}
	return all, nil
}

// writeInstance stores an Instance and its status.
func (c *controller) writeInstance(ctx context.Context, s InstanceState, next *resource.Instance) (*resource.Instance, error) {
	key, status := store.Key{Kind: resource.KindInstance, Namespace: next.Metadata.Namespace, Name: s.Name}, next.Status
	if s.Instance == nil {
		made, err := objects.Create(ctx, c.as, next)
		if errors.Is(err, resource.AlreadyExists) {
			return nil, fmt.Errorf("%w: it is looked at again", err)
		}
		if err != nil {
			return nil, err
		}
		c.record(made, "Discovered", "found by "+objects.JoinFirst(made.Spec.Nodes))
		next = made
	} else {
		spec, owners := next.Spec, next.Metadata.OwnerReferences
		err := objects.Update(ctx, c.as, key, func(i *resource.Instance) error {
			approval := i.Spec.Approval
			i.Spec, i.Metadata.OwnerReferences = spec, owners
			i.Spec.Approval = approval
			addFinalizer(&i.Metadata)
			return nil
		})
		if err != nil {
			return nil, err
		}
		changed, err := objects.Get[resource.Instance](ctx, c.as, key)
		if err != nil {
			return nil, err
		}
		if status.LastSeen != "" && s.Instance.Status.LastSeen == "" {
			c.record(changed, "Disappeared", "no node sees it any more")
		}
		if why := describeMovedSlots(s, changed); why != "" {
			c.record(changed, "FailedOver", why)
		}
		next = changed
	}
	generation := next.Metadata.Generation
	err := objects.UpdateStatus(ctx, c.as, key, func(i *resource.Instance) error {
		i.Status.LastSeen = status.LastSeen
		for _, kind := range []string{resource.ConditionVisible, resource.ConditionBrokerReady} {
			cond := resource.ConditionOf(status.Conditions, kind)
			if cond.Type == "" {
				i.Status.Conditions = withoutCondition(i.Status.Conditions, kind)
				continue
			}
			cond.ObservedGeneration = generation
			i.Status.Conditions = resource.SetCondition(slices.Clone(i.Status.Conditions), cond, c.Now())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return objects.Get[resource.Instance](ctx, c.as, key)
}

func (c *controller) record(i *resource.Instance, reason, message string) {
	c.Record(resource.Occurrence{
		Kind: resource.KindInstance, Namespace: i.Metadata.Namespace, Name: i.Metadata.Name, UID: i.Metadata.UID, Type: resource.EventNormal,
		Reason: reason, Message: message,
	})
}

// describeMovedSlots says which nodes that are offline have lost their slots of an Instance to which others; empty: none.
func describeMovedSlots(s InstanceState, now *resource.Instance) string {
	var texts []string
	for slot, node := range now.Spec.DeviceUsage {
		was := s.Instance.Spec.DeviceUsage[slot]
		if off := s.Hosts[was].Offline; was != "" && node != "" && was != node && !off.IsZero() {
			texts = append(texts, fmt.Sprintf("%s has the slot of %s, which is offline since %s", node, was, resource.FormatTime(off)))
		}
	}
	slices.Sort(texts)
	return objects.JoinFirst(texts)
}

// deviceReader reads a Device of a namespace; nil: there is none.
func (c *controller) deviceReader(ctx context.Context, namespace string) func(name string) (*resource.Device, error) {
	return func(name string) (*resource.Device, error) {
		d, err := objects.Get[resource.Device](ctx, c.as, store.Key{Namespace: namespace, Name: name})
		if errors.Is(err, resource.NotFound) {
			return nil, nil //nolint:nilnil // there is none
		}
		return d, err
	}
}

// onboard makes the Device of an Instance, and deletes the one before if that had another name. again is when to try again; 0: never.
func (c *controller) onboard(ctx context.Context, t *resource.DeviceTemplate, i *resource.Instance) (again time.Duration, err error) {
	p, err := PlanDevice(t, i, c.deviceReader(ctx, i.Metadata.Namespace))
	if err == nil {
		err = c.putDevice(ctx, &p)
	}
	if err != nil {
		return 0, err
	}
	for _, name := range p.Delete {
		gone, err := c.deleteDevice(ctx, i, name)
		switch {
		case err != nil:
			return 0, err
		case !gone: // its end brings this Instance back
			p.Name = name
		case p.Name == name:
			p.Name = ""
		}
	}
	err = objects.UpdateStatus(ctx, c.as, store.Key{Namespace: i.Metadata.Namespace, Name: i.Metadata.Name}, func(i *resource.Instance) error {
		i.Status.Device = p.Name
		i.Status.Conditions = setCondition(i.Status.Conditions, i.Metadata, c.Now(), resource.ConditionOnboarded, p.Onboarded, p.Reason, p.Message)
		return nil
	})
	if p.Reason == reasonNameTaken || p.Reason == reasonRefused { // nothing tells when that ends
		again = c.Retry
	}
	return again, store.IgnoreNotFound(err)
}

// putDevice writes the Device of a plan. What the API refuses of it becomes the plan's message, and nothing is deleted.
func (c *controller) putDevice(ctx context.Context, p *DevicePlan) (err error) {
	if p.Device == nil {
		return nil
	}
	key := store.Key{Kind: resource.KindDevice, Namespace: p.Device.Metadata.Namespace, Name: p.Device.Metadata.Name}
	if !p.Exists {
		_, err = objects.Create(ctx, c.as, p.Device)
	} else {
		err = objects.Update(ctx, c.as, key, func(d *resource.Device) error {
			if !IsMadeOf(d, p.Device.Metadata.Annotations[instanceAnnotation]) || IsEdited(d) {
				return nil // somebody was faster
			}
			MergeDevice(d, p.Device)
			return nil
		})
	}
	var e *resource.Error
	if errors.As(err, &e) && (e.Kind == resource.Invalid || e.Kind == resource.AlreadyExists) {
		p.Delete, p.Name, p.Onboarded, p.Reason, p.Message = nil, p.Existing, false, reasonRefused, "the Device "+key.Name+" is refused: "+e.Error()
		return nil
	}
	return store.IgnoreNotFound(err)
}

// deleteDevice deletes a Device that was made of an Instance, unless somebody has edited it. gone: there is none that is to go.
func (c *controller) deleteDevice(ctx context.Context, i *resource.Instance, name string) (gone bool, err error) {
	if name == "" {
		return true, nil
	}
	get := c.deviceReader(ctx, i.Metadata.Namespace)
	isOurs := func(d *resource.Device) bool { return IsMadeOf(d, i.Metadata.Name) && !IsEdited(d) }
	goes := func() (bool, error) {
		d, err := get(name)
		return d != nil && isOurs(d), err
	}
	if is, err := goes(); err != nil || !is {
		return err == nil, err
	}
	if err := objects.DeleteIf(ctx, c.as, store.Key{Namespace: i.Metadata.Namespace, Name: name}, isOurs); store.IgnoreNotFound(err) != nil {
		return false, err
	}
	is, err := goes()
	return err == nil && !is, err
}

// removeInstance deletes an Instance once the Device that was made of it is gone, unless that is somebody's or to be kept.
func (c *controller) removeInstance(ctx context.Context, s InstanceState) (time.Duration, error) {
	i := s.Instance
	if i == nil {
		return 0, nil
	}
	// A Configuration that is being deleted still says what becomes of Devices. Without a template nothing says that they are to go.
	if conf := c.known.configuration(i.Spec.ConfigurationName); conf != nil && isOwnedBy(i, conf) {
		if t := conf.Spec.DeviceTemplate; t != nil && t.WhenGone != resource.WhenGoneKeep {
			p, err := PlanDevice(t, i, c.deviceReader(ctx, i.Metadata.Namespace))
			if err != nil {
				return 0, err
			}
			for _, name := range []string{p.Existing, p.Name} {
				if gone, err := c.deleteDevice(ctx, i, name); err != nil || !gone {
					return time.Second, err
				}
			}
		}
	}
	key := store.Key{Kind: resource.KindInstance, Namespace: i.Metadata.Namespace, Name: i.Metadata.Name}
	if slices.Contains(i.Metadata.Finalizers, finalizer) {
		err := objects.Update(ctx, c.as, key, func(i *resource.Instance) error {
			removeFinalizer(&i.Metadata)
			return nil
		})
		if store.IgnoreNotFound(err) != nil {
			return 0, err
		}
	}
	if i.Metadata.DeletionTimestamp == nil {
		removed := false
		if err := store.IgnoreNotFound(objects.DeleteIf(ctx, c.as, key, func(now *resource.Instance) bool {
			removed = now.Metadata.UID == i.Metadata.UID
			return removed
		})); err != nil {
			return 0, err
		}
		if removed { // not one that somebody else has removed, or made anew
			c.record(i, "Removed", "no node sees it, or its Configuration is gone")
		}
	}
	return 0, nil
}

// nodesOfInstance are the nodes that run applications for an Instance.
func nodesOfInstance(o store.Object) []store.Key {
	var i resource.Instance
	if json.Unmarshal(o.Data, &i) != nil {
		return nil
	}
	return applicationKeys(nodesUsing(&i))
}

func applicationKeys(nodes []string) (list []store.Key) {
	for _, node := range nodes {
		list = append(list, store.Key{Kind: ApplicationsKind, Name: node})
	}
	return list
}

// reconcileApplications writes the record of what a node runs for Instances. What it passes to a container is what the node itself reports of
// the device, and no other node. While the node doesn't see it, or is not chosen any more, but has the slot, the broker stays as it was.
func (c *controller) reconcileApplications(ctx context.Context, key store.Key) (time.Duration, error) {
	if !c.seen.isComplete(topics.KindInstance) {
		return c.Pause, nil
	}
	was, err := c.Reader.Get(ctx, key)
	if store.IgnoreNotFound(err) != nil {
		return 0, err
	}
	var before, list []resource.Application
	_ = json.Unmarshal(was.Data, &before) // none, or none that can be read
	for _, name := range c.known.usedBy(key.Name) {
		configuration, namespace := c.instanceOf(name)
		conf := c.known.configuration(configuration)
		if conf == nil || conf.Metadata.DeletionTimestamp != nil || len(conf.Spec.BrokerSpec) == 0 {
			continue
		}
		i, err := objects.Get[resource.Instance](ctx, c.as, store.Key{Namespace: namespace, Name: name})
		if errors.Is(err, resource.NotFound) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if i.Metadata.DeletionTimestamp != nil || !IsManaged(i) || !slices.Contains(nodesUsing(i), key.Name) {
			continue
		}
		var own []Sighting
		if order, ok := c.known.orders.Get(orderKey(configuration)); ok && slices.Contains(order.Nodes, key.Name) {
			own = c.seen.sightingsOf(name, []string{key.Name})
		}
		if len(own) == 0 {
			at := slices.IndexFunc(before, func(a resource.Application) bool { return a.Name == brokerApplicationName(configuration, name) })
			if at >= 0 {
				list = append(list, before[at])
			}
		} else if app, err := BrokerApplication(conf, i, own[0]); err == nil {
			list = append(list, app)
		}
	}
	if len(list) == 0 {
		if err == nil {
			_, err = c.Writer.Delete(ctx, key, was.Rev)
		}
		return 0, store.IgnoreNotFound(err)
	}
	slices.SortFunc(list, func(a, b resource.Application) int { return cmp.Compare(a.Name, b.Name) })
	return 0, c.putRecord(ctx, key, list)
}
