// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what the controller needs.
type Options struct {
	// Objects read what specs refer to, and write Nodes' statuses.
	Objects *objects.Controller
	// Reader and Writer have the records, whose status is of use to this controller alone.
	Reader store.Reader
	Writer store.Writer
	// Blobs keep contents by their digests. What rendered specs refer to is kept for good.
	Blobs interface {
		Put(ctx context.Context, r io.Reader, want string) (digest string, size int64, err error)
		Has(digest string) (size int64, ok bool)
	}
	// Sources say what references to repositories, servers and registries stand for.
	Sources interface {
		// Use notes which sources somebody uses. Their records of kind resource.KindSource change when they do.
		Use(user store.Key, refs []resource.Reference, every time.Duration)
		// Users are the keys, of one kind, of those that use a record.
		Users(kind string) func(store.Object) []store.Key
		// Known is what a reference stood for when it was read last, and why it can't be read now. A failure may have a
		// method Cause with the reason. Without a hash and a failure it is being read for the first time.
		Known(ctx context.Context, ref resource.Reference) (known resource.Reference, failure error, err error)
	}
	// Record records an Event of a Node. It may be nil.
	Record  func(resource.Occurrence)
	Metrics prometheus.Registerer
	Now     func() time.Time
}

// ProblemsKind is the kind of the records of why applications of ApplicationsKind are left out of a node's rendered spec: texts by the names of
// the applications, under the nodes' names. There is none for a node of which none is left out.
const ProblemsKind = "BrokerProblems"

// ApplicationsKind is the kind of the records of applications that a node runs besides those of its spec, for devices that were
// discovered: lists of resource.Application, under the nodes' names. cloud/discovery writes them.
const ApplicationsKind = "BrokerApplications"

// renderingFormat is part of what a rendering is made from: another one after a change of Render's results has every Node rendered again.
const renderingFormat = "1"

// workers is how many Nodes are rendered at a time: they share commits of the store.
const workers = 256

// blobCheckInterval is how often it is looked whether the contents of a rendered spec are still there. What was damaged is made again.
const blobCheckInterval = 10 * time.Minute

// maxDecodedConfigMaps is how many ConfigMaps are kept decoded, with the digests of their values.
const maxDecodedConfigMaps = 16

// maxDecodedSpecs is how many specs are kept decoded, and maxDecodedSpec is how long the text of one may be.
const maxDecodedSpecs, maxDecodedSpec = 16, 16 << 10

// NewController makes the controller that renders Nodes' specs. It keeps a record of kind RenderedSpec for each Node that has
// had a spec, under the Node's name.
func NewController(o Options) control.Controller {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Record == nil {
		o.Record = func(resource.Occurrence) {}
	}
	c := &controller{
		Options: o, values: make(map[store.Key]decodedConfigMap), specs: make(map[string]*decodedSpec),
		renders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgebus_renders_total", Help: "Nodes' specs that were rendered, by result: changed (a new renderedVersion), unchanged or problem.",
		}, []string{"result"}),
	}
	o.Metrics.MustRegister(c.renders)
	for _, result := range []string{"changed", "unchanged", "problem"} { // 0 is a figure, too
		c.renders.WithLabelValues(result)
	}
	nodes := &control.Index[struct{}]{Kind: resource.KindNode, Of: indexNode}
	referring := func(o store.Object) []store.Key { return nodes.Referring(o.Key) }
	withoutNode := func(o store.Object) []store.Key {
		if _, there := nodes.Get(nodeKey(o.Name)); there {
			return nil
		}
		return []store.Key{nodeKey(o.Name)}
	}
	return control.Controller{
		Name: "render", Workers: workers, Reconcile: c.reconcile, Indexes: []control.Indexer{nodes},
		Watches: []control.Watch{
			{Kind: resource.KindNode, Same: func(a, b store.Object) bool {
				return bytes.Equal(a.Data, b.Data) || objects.SameGeneration(a, b) && retryAnnotation(a) == retryAnnotation(b)
			}},
			{Kind: ApplicationsKind, Keys: func(o store.Object) []store.Key { return []store.Key{nodeKey(o.Name)} }},
			{Kind: resource.KindConfigMap, Keys: referring},
			{Kind: resource.KindSecret, Keys: referring},
			{Kind: resource.KindSource, Keys: o.Sources.Users(resource.KindNode)},
			// The records of Nodes that were deleted when the hub stopped.
			{Kind: resource.KindRenderedSpec, Keys: withoutNode},
		},
	}
}

type controller struct {
	Options
	renders *prometheus.CounterVec

	mu     sync.Mutex
	values map[store.Key]decodedConfigMap // of ConfigMaps
	specs  map[string]*decodedSpec        // by their texts
}

// decodedSpec is a spec, and what it comes to. The nodes of a fleet most often have the same text.
type decodedSpec struct {
	resource.NodeSpec
	references []store.Key
	refs       []resource.Reference
	rendered   *renderedContent // nil: it is not known yet, or does not follow from the text alone
}

// renderedContent is what Render makes: the text as contentOf has it, and the contents that are blobs.
type renderedContent struct {
	content  []byte
	contents map[string][]byte
}

// decodeSpec decodes a spec as it is stored. It is not to be changed.
func (c *controller) decodeSpec(text []byte) (*decodedSpec, error) {
	c.mu.Lock()
	known := c.specs[string(text)]
	c.mu.Unlock()
	if known != nil {
		return known, nil
	}
	known = new(decodedSpec)
	if len(text) > 0 {
		if err := json.Unmarshal(text, &known.NodeSpec); err != nil {
			return nil, err
		}
	}
	known.references, known.refs = LookedUpKeys(known.NodeSpec), sourceReferences(known.NodeSpec)
	if len(text) <= maxDecodedSpec {
		c.mu.Lock()
		defer c.mu.Unlock()
		makeRoom(c.specs, maxDecodedSpecs)
		c.specs[string(text)] = known
	}
	return known, nil
}

// makeRoom has a map have fewer than most entries.
func makeRoom[K comparable, V any](m map[K]V, most int) {
	for key := range m {
		if len(m) < most {
			break
		}
		delete(m, key)
	}
}

// decodedConfigMap are the values of a ConfigMap at a revision.
type decodedConfigMap struct {
	rev    uint64
	values []ConfigMapValue
}

// renderingInputs is what a record was made from. It is the record's Status, so that Data is what the node is sent.
type renderingInputs struct {
	// UID is the Node's. A Node that was made anew under the same name has a version of its own.
	UID string `json:"uid"`
	// Inputs is a hash of the spec and of the versions of all that it refers to.
	Inputs string `json:"inputs"`
	// Retry is the Node's annotation of that name.
	Retry string `json:"retry,omitempty"`
}

func nodeKey(name string) store.Key   { return store.Key{Kind: resource.KindNode, Name: name} }
func recordKey(name string) store.Key { return store.Key{Kind: resource.KindRenderedSpec, Name: name} }

func (c *controller) reconcile(ctx context.Context, key store.Key) (time.Duration, error) {
	stored, err := c.Reader.Get(ctx, key)
	if errors.Is(err, resource.NotFound) {
		c.Sources.Use(key, nil, 0)
		return 0, c.forget(ctx, key.Name)
	}
	if err != nil {
		return 0, err
	}
	node, _ := objects.PartsOf(stored.Data)
	var uid string
	decoded, err := c.decodeSpec(node.Spec)
	if err == nil {
		err = json.Unmarshal(rawjson.Field(node.Metadata, "uid"), &uid)
	}
	if err != nil {
		return 0, fmt.Errorf("the stored Node can't be read: %w", err)
	}
	brokers, more, err := c.brokers(ctx, key.Name)
	if err != nil {
		return 0, err
	}
	references, refs := decoded.references, decoded.refs
	c.Sources.Use(key, refs, 0)
	record, err := c.record(ctx, key.Name)
	if err != nil {
		return 0, err
	}
	if record.version == 0 && brokers == 0 && (len(node.Spec) == 0 || string(node.Spec) == "{}") && !bytes.Contains(stored.Status, []byte(resource.ConditionSpecRendered)) {
		return 0, nil // nothing has ever been wanted of it
	}
	o := renderingOutcome{uid: uid, version: record.RenderedVersion, refers: len(references)+len(refs) > 0}
	resolved, missing, err := c.resolve(ctx, decoded.NodeSpec, refs)
	if err != nil {
		return 0, err
	}
	if o.unresolved, o.failed = missing.known, missing.unknown; o.failed != nil {
		return 0, c.report(ctx, key, o)
	}
	from := renderingInputs{UID: uid, Retry: retryAnnotation(stored)}
	if from.Inputs, err = c.hashInputs(ctx, node.Spec, brokers, references, resolved); err != nil {
		return 0, err
	}
	blobs := record.blobs()
	if record.renderingInputs != from || !c.has(blobs) {
		if o.version, err = c.render(ctx, stored, record, decoded, resolved, more, from); err != nil && !errors.As(err, &o.failed) {
			return 0, err
		}
	}
	again := time.Duration(0)
	if blobs.HasBlobs() {
		again = blobCheckInterval
	}
	return again, c.report(ctx, key, o)
}

// retryAnnotation is the value of the annotation with which somebody asks for another attempt.
func retryAnnotation(node store.Object) (value string) {
	if text := rawjson.Field(rawjson.Field(rawjson.Field(node.Data, "metadata"), "annotations"), resource.RetryAnnotation); text != nil {
		_ = json.Unmarshal(text, &value) // the API has checked that it is a text
	}
	return value
}

// sourceReferences are the references of a spec to what is outside of the hub.
func sourceReferences(spec resource.NodeSpec) (refs []resource.Reference) {
	for _, r := range spec.References() {
		if r.IsSource() {
			refs = append(refs, r)
		}
	}
	return refs
}

// unresolvedReferences is why references can't be resolved now. Those of unknown never could; the spec is not rendered without them. For those
// of known what they stood for before is rendered, and for the OS image, which the node may reach where the hub can't, what was
// written.
type unresolvedReferences struct{ known, unknown *Problem }

// resolve says what a spec's sources stand for.
func (c *controller) resolve(ctx context.Context, spec resource.NodeSpec, refs []resource.Reference) (list []resource.Reference, why unresolvedReferences, err error) {
	for _, ref := range refs {
		known, failure, err := c.Sources.Known(ctx, ref)
		if err != nil {
			return nil, why, err
		}
		if known.Resolved != "" {
			list = append(list, known)
		}
		p := &why.known
		if known.Resolved == "" && (failure == nil || ref.Type != resource.RefImage) {
			p = &why.unknown
		}
		switch {
		case failure != nil && (*p == nil || (*p).Reason == ReasonNotRead):
			*p = &Problem{Reason: failureReason(failure), Message: referenceField(spec, ref) + ": " + failure.Error(), Unresolved: true}
		case failure == nil && known.Resolved == "" && *p == nil:
			*p = &Problem{Reason: ReasonNotRead, Message: referenceField(spec, ref) + " is being read", Unresolved: true}
		}
	}
	return list, why, nil
}

func failureReason(failure error) string {
	var why interface{ Cause() string }
	if errors.As(failure, &why) {
		return why.Cause()
	}
	return ReasonNotFound
}

// referenceField is the part of a spec that has a reference.
func referenceField(spec resource.NodeSpec, ref resource.Reference) string {
	has := func(part resource.NodeSpec) bool {
		return slices.ContainsFunc(part.References(), func(r resource.Reference) bool { return r.Key() == ref.Key() })
	}
	for _, item := range spec.Config {
		if has(resource.NodeSpec{Config: []resource.ConfigItem{item}}) {
			return "spec.config[" + item.Name + "]"
		}
	}
	for _, a := range spec.Applications {
		if has(resource.NodeSpec{Applications: []resource.Application{a}}) {
			return "spec.applications[" + a.Name + "].image"
		}
	}
	return "spec.os.image"
}

// has says whether all contents of a rendered spec are there. A blob that was damaged is not.
func (c *controller) has(spec resource.RenderedSpec) bool {
	for digest := range spec.Blobs() {
		if _, ok := c.Blobs.Has(digest); !ok {
			return false
		}
	}
	return true
}

// brokers are the applications of brokers that a node runs, and the revision of their record; 0: there is none.
func (c *controller) brokers(ctx context.Context, node string) (rev uint64, list []resource.Application, err error) {
	stored, err := c.Reader.Get(ctx, store.Key{Kind: ApplicationsKind, Name: node})
	if errors.Is(err, resource.NotFound) {
		return 0, nil, nil
	}
	if err == nil {
		err = json.Unmarshal(stored.Data, &list)
	}
	return stored.Rev, list, err
}

// renderingOutcome is what a Node's status says of its rendering.
type renderingOutcome struct {
	uid     string   // of the Node
	version string   // the last that was rendered; empty: none
	refers  bool     // the spec refers to something
	failed  *Problem // why the spec is not rendered; nil: it is
	// unresolved is why a source can't be read now, although the spec is rendered; nil: all can be.
	unresolved *Problem
}

// renderedRecord is what is stored of the last rendering of a Node.
type renderedRecord struct {
	RenderedVersion string
	content         []byte // see contentOf
	renderingInputs
	version uint64 // 0: there is none
	rev     uint64
}

// blobs is the rendered spec if some of its contents may be blobs. Most have none, and are not decoded.
func (r renderedRecord) blobs() (spec resource.RenderedSpec) {
	if bytes.Contains(r.content, []byte(`"digest"`)) {
		_ = json.Unmarshal(withVersion(r.content, ""), &spec) // one that can't be read is damaged beyond its contents
	}
	return spec
}

// versionField is what a rendered spec in JSON begins with, before the version.
const versionField = `{"renderedVersion":"`

// contentOf is the version of a rendered spec in JSON, and all that follows; nil: it is none.
func contentOf(rendered []byte) (version string, content []byte) {
	rest, ok := bytes.CutPrefix(rendered, []byte(versionField))
	end := bytes.IndexByte(rest, '"')
	if !ok || end < 0 {
		return "", nil
	}
	return string(rest[:end]), rest[end:]
}

func withVersion(content []byte, version string) []byte {
	out := make([]byte, 0, len(versionField)+len(version)+len(content))
	return append(append(append(out, versionField...), version...), content...)
}

func (c *controller) record(ctx context.Context, node string) (r renderedRecord, err error) {
	stored, err := c.Reader.Get(ctx, recordKey(node))
	if errors.Is(err, resource.NotFound) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	r.rev = stored.Rev
	r.RenderedVersion, r.content = contentOf(stored.Data)
	r.version = versionNumber(r.RenderedVersion)
	_ = json.Unmarshal(stored.Status, &r.renderingInputs) // one that can't be read is rendered again
	return r, nil
}

// hashInputs is a hash of all that a rendering is made from.
func (c *controller) hashInputs(
	ctx context.Context, spec []byte, brokers uint64, references []store.Key, resolved []resource.Reference,
) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%d\n%s\n", renderingFormat, len(spec), spec)
	if brokers > 0 {
		fmt.Fprintf(h, "optional brokers %d\n", brokers)
	}
	for _, ref := range references {
		o, err := c.Reader.Get(ctx, ref)
		if err != nil && !errors.Is(err, resource.NotFound) {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", ref, o.Rev) // 0: there is none
	}
	for _, ref := range resolved {
		fmt.Fprintf(h, "%v %s\n", ref.Key(), ref.Resolved)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// render renders a Node's spec and stores the result, of which it returns the version. The version rises if the result is another
// one than before, or somebody asks for another attempt; it is the former one if the spec can't be rendered.
func (c *controller) render(
	ctx context.Context, node store.Object, was renderedRecord, spec *decodedSpec, resolved []resource.Reference, brokers []resource.Application, from renderingInputs,
) (version string, err error) {
	version = was.RenderedVersion
	content, contents, leftOut, err := c.content(ctx, spec, resolved, brokers)
	if err != nil {
		var p *Problem
		if errors.As(err, &p) {
			c.renders.WithLabelValues("problem").Inc()
		}
		return version, err
	}
	if err := c.noteProblems(ctx, node.Name, leftOut); err != nil {
		return version, err
	}
	status, err := json.Marshal(from)
	if err != nil {
		return version, err
	}
	for _, digest := range slices.Sorted(maps.Keys(contents)) { // before anything refers to them, and again where one was damaged
		if _, _, err := c.Blobs.Put(ctx, bytes.NewReader(contents[digest]), digest); err != nil {
			return version, fmt.Errorf("the content %s can't be kept: %w", digest, err)
		}
	}
	next, result := store.Object{Key: recordKey(node.Name), Status: status}, "unchanged"
	if was.version == 0 || was.UID != from.UID || was.Retry != from.Retry || !bytes.Equal(was.content, content) {
		result = "changed"
		if version, err = c.nextVersion(ctx, was); err != nil {
			return version, err
		}
		next.Data = withVersion(content, version)
	}
	if err = store.Put(ctx, c.Writer, next, was.rev); err == nil {
		c.renders.WithLabelValues(result).Inc()
	}
	return version, err
}

// content is what a spec comes to, in JSON without the version, with the contents that are blobs and may not be there yet, and why brokers
// are left out. Where that follows from the spec's text alone it is rendered once for all nodes that have it.
func (c *controller) content(
	ctx context.Context, spec *decodedSpec, resolved []resource.Reference, brokers []resource.Application,
) (content []byte, contents map[string][]byte, leftOut map[string]string, err error) {
	alone := len(spec.references)+len(spec.refs)+len(brokers) == 0
	c.mu.Lock()
	known := spec.rendered
	c.mu.Unlock()
	if alone && known != nil {
		return known.content, known.contents, nil, nil
	}
	out, contents, err := Render(spec.NodeSpec.Freeze(resolved), c.lookups(ctx))
	if err != nil {
		return nil, nil, nil, err
	}
	if leftOut, err = AddBrokers(&out, contents, brokers); err != nil {
		return nil, nil, nil, err
	}
	text, err := json.Marshal(out)
	if err != nil {
		return nil, nil, nil, err
	}
	_, content = contentOf(text)
	if alone {
		c.mu.Lock()
		defer c.mu.Unlock()
		spec.rendered = &renderedContent{content, contents}
	}
	return content, contents, leftOut, nil
}

// noteProblems writes the record of which brokers are left out of a node's rendered spec, and why.
func (c *controller) noteProblems(ctx context.Context, node string, why map[string]string) error {
	key := store.Key{Kind: ProblemsKind, Name: node}
	data, err := json.Marshal(why)
	if err != nil {
		return err
	}
	was, err := c.Reader.Get(ctx, key) // revision 0: there is none
	switch {
	case err != nil && !errors.Is(err, resource.NotFound):
		return err
	case len(why) > 0:
		return store.Put(ctx, c.Writer, store.Object{Key: key, Data: data}, was.Rev)
	case was.Rev > 0:
		_, err = c.Writer.Delete(ctx, key, was.Rev)
		return err
	}
	return nil
}

// lookups read the store.
func (c *controller) lookups(ctx context.Context) Lookups {
	return Lookups{
		Blob:      c.Blobs.Has,
		ConfigMap: func(namespace, name string) ([]ConfigMapValue, error) { return c.configMap(ctx, namespace, name) },
		Secret: func(namespace, name string) (version string, keys []string, err error) {
			s, err := objects.Get[resource.Secret](ctx, c.Objects, store.Key{Namespace: namespace, Name: name})
			if err != nil {
				return "", nil, err
			}
			return s.Version(), slices.Collect(maps.Keys(s.Data)), nil
		},
	}
}

// configMap reads the values of a ConfigMap. Many nodes may refer to one, so those read last are kept decoded.
func (c *controller) configMap(ctx context.Context, namespace, name string) ([]ConfigMapValue, error) {
	key := store.Key{Kind: resource.KindConfigMap, Namespace: namespace, Name: name}
	stored, err := c.Reader.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	known := c.values[key]
	c.mu.Unlock()
	if known.rev == stored.Rev {
		return known.values, nil
	}
	m, err := objects.Get[resource.ConfigMap](ctx, c.Objects, key)
	if err != nil {
		return nil, err
	}
	known.values = ConfigMapValues(*m)
	known.rev, _ = strconv.ParseUint(m.Metadata.ResourceVersion, 10, 64)
	c.mu.Lock()
	defer c.mu.Unlock()
	makeRoom(c.values, maxDecodedConfigMaps)
	c.values[key] = known
	return known.values, nil
}

// versionNumber is a version as a number; 0 if it is none.
func versionNumber(version string) uint64 {
	n, _ := strconv.ParseUint(version, 10, 64)
	return n
}

// nextVersion is a version that this hub has sent no node of that name: it follows the last one, and what deleted Nodes had. What the node
// reports doesn't count: it may say anything. After a restore from a backup a number may be sent again, with another content, by which the
// agent tells them apart.
func (c *controller) nextVersion(ctx context.Context, was renderedRecord) (string, error) {
	last := was.version
	if was.version == 0 {
		deleted, _, err := c.highestDeleted(ctx)
		if err != nil {
			return "", err
		}
		last = max(last, deleted)
	}
	return strconv.FormatUint(last+1, 10), nil
}

// deletedVersionKey is the record of the highest version that a deleted Node had. A Node that is made anew under its name goes on
// after it: an agent that remembers a version as failed never sees that number again for something else.
var deletedVersionKey = store.Key{Kind: resource.KindRenderedSpec + "Deleted", Name: "highest"}

func (c *controller) highestDeleted(ctx context.Context) (version, rev uint64, err error) {
	stored, err := c.Reader.Get(ctx, deletedVersionKey)
	if errors.Is(err, resource.NotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	var kept string
	err = json.Unmarshal(stored.Data, &kept)
	return versionNumber(kept), stored.Rev, err
}

// forget deletes what is kept of a Node that doesn't exist.
func (c *controller) forget(ctx context.Context, node string) error {
	was, err := c.record(ctx, node)
	if err != nil || was.rev == 0 {
		return err
	}
	if err := c.noteProblems(ctx, node, nil); err != nil {
		return err
	}
	deleted, rev, err := c.highestDeleted(ctx)
	if err != nil {
		return err
	}
	if was.version > deleted {
		if err := store.Put(ctx, c.Writer, store.Object{Key: deletedVersionKey, Data: strconv.AppendQuote(nil, was.RenderedVersion)}, rev); err != nil {
			return err
		}
	}
	_, err = c.Writer.Delete(ctx, recordKey(node), was.rev)
	return store.IgnoreNotFound(err)
}

// report writes the outcome of the rendering into the Node's status.
func (c *controller) report(ctx context.Context, key store.Key, o renderingOutcome) error {
	changed := false
	err := objects.UpdateDerived(ctx, c.Objects, key, func(n *resource.Node) (derived bool, err error) {
		if n.Metadata.UID != o.uid {
			return true, nil // another Node, which is looked at next
		}
		before := n.Status.Conditions
		n.Status.SpecVersion, n.Status.Conditions = o.version, c.conditions(before, n.Metadata.Generation, o)
		changed = !slices.Equal(before, n.Status.Conditions)
		return resource.SameConditions(before, n.Status.Conditions, nil), nil
	})
	if errors.Is(err, resource.NotFound) {
		return nil // its deletion is looked at next
	}
	if err == nil && changed && o.failed != nil && o.failed.Reason != ReasonNotRead {
		c.Record(resource.Occurrence{
			Kind: resource.KindNode, Name: key.Name, UID: o.uid, Type: resource.EventWarning,
			Reason: "SpecNotRendered", About: o.failed.Reason, Message: o.failed.Message,
		})
	}
	return err
}

func (c *controller) conditions(before []resource.Condition, generation int64, o renderingOutcome) []resource.Condition {
	failed, unresolved := o.failed, o.unresolved
	if failed != nil && failed.Unresolved {
		unresolved = failed
	}
	now, list := c.Now(), slices.Clone(before)
	rendered := resource.Condition{Type: resource.ConditionSpecRendered, Status: "True", Reason: "Rendered", ObservedGeneration: generation}
	resolved := resource.Condition{Type: resource.ConditionReferencesResolved, Status: "True", Reason: "Resolved", ObservedGeneration: generation}
	if failed != nil {
		rendered.Status, rendered.Reason = "False", failed.Reason
		rendered.Message = "the node keeps what it was sent before: " + objects.ClipText(failed.Message, maxMessage)
	}
	if unresolved != nil {
		resolved.Status, resolved.Reason, resolved.Message = "False", unresolved.Reason, objects.ClipText(unresolved.Message, maxMessage)
	}
	list = resource.SetCondition(list, rendered, now)
	if o.refers || unresolved != nil || slices.ContainsFunc(before, func(o resource.Condition) bool { return o.Type == resolved.Type }) {
		list = resource.SetCondition(list, resolved, now)
	}
	resource.SetNodeGeneration(list, generation) // else they would be written next, for that alone
	return list
}

// maxMessage bounds the message of a condition, in bytes.
const maxMessage = 4 << 10

// indexNode has a Node found by the objects that its spec refers to. Most specs refer to none, and aren't decoded: fields that do end so, as they are stored.
func indexNode(o store.Object) (v struct{}, refs []store.Key, ok bool) {
	var spec resource.NodeSpec
	if parts, _ := objects.PartsOf(o.Data); bytes.Contains(parts.Spec, []byte(`Ref"`)) && json.Unmarshal(parts.Spec, &spec) == nil {
		refs = LookedUpKeys(spec)
	}
	return v, refs, true
}
