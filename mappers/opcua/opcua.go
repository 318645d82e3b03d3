// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
	"github.com/edgebus/edgebus/mappers/settings"
)

// Options configure the driver.
type Options struct {
	// DataDir has this mapper's key and certificate, CredentialsDir a file for each user and password that Devices name.
	DataDir, CredentialsDir string
	// Timeout is how long a server may take to answer where the Device doesn't say.
	Timeout time.Duration
}

// Driver makes sessions.
type Driver struct {
	o Options

	identifying sync.Mutex // devices are opened at the same time, and have one certificate
}

// New makes a driver.
func New(o Options) *Driver { return &Driver{o: o} }

func (d *Driver) identity() (wire.Identity, error) {
	d.identifying.Lock()
	defer d.identifying.Unlock()
	return loadIdentity(d.o.DataDir)
}

// Protocols implements mappers.Driver.
func (d *Driver) Protocols() []string { return []string{"opcua"} }

// Open implements mappers.Driver. It doesn't connect.
func (d *Driver) Open(_ context.Context, dev mappers.Device) (mappers.Session, error) {
	c, err := parseDevice(dev, d.o)
	if err != nil {
		return nil, err
	}
	if c.options.Policy != wire.PolicyNone || c.credentials != "" {
		if c.options.Identity, err = d.identity(); err != nil && c.options.Policy != "" && c.options.Policy != wire.PolicyNone {
			return nil, err
		}
	}
	if c.credentials != "" {
		lines, err := settings.ReadCredentials(d.o.CredentialsDir, c.credentials, 2)
		if err != nil {
			return nil, mappers.BadConfig(settings.DevicePath+"credentials", "%v", err)
		}
		c.options.User, c.options.Password = lines[0], lines[1]
	}
	return &session{device: dev, config: c, dialing: make(chan struct{}, 1), kinds: map[*field]valueKind{}, limit: mappers.NewRequestLimit(dev, "MaxNodes", c.most, defaultMost)}, nil
}

// session is an open device. Its connection is made when it is needed, and again when it was lost.
type session struct {
	device  mappers.Device
	config  deviceConfig
	dialing chan struct{}         // held while the connection is made
	limit   *mappers.RequestLimit // of nodes

	mu     sync.Mutex
	conn   *connection
	kinds  map[*field]valueKind // as they were read last: a server may end the connection after each answer, and a write needs its kind
	short  int                  // connections in a row that the server ended soon after they were made
	closed bool
}

// shortLife is of a connection that ends soon. Of a server that ends two in a row a write gets a fresh one: it could cross the end of another,
// and nobody would know whether it was made.
const shortLife = time.Second

// connection is a session with the server, with what was found out in it.
type connection struct {
	*wire.Session
	nodes map[*field]wire.NodeID
	types typeCache
	made  time.Time
}

func newConnection(s *wire.Session) *connection {
	return &connection{Session: s, nodes: map[*field]wire.NodeID{}, types: typeCache{reader: wire.NewTypeReader(s)}, made: time.Now()}
}

// valueKind is as what a property is written.
type valueKind struct {
	kind  wire.Kind
	array bool
}

const defaultMost = 500

var errClosed = errors.New("the device was closed")

// Close implements mappers.Session.
func (s *session) Close() error {
	s.mu.Lock()
	conn := s.conn
	s.conn, s.closed = nil, true
	s.mu.Unlock()
	if conn != nil {
		return conn.Close()
	}
	return nil
}

// Reconnect implements mappers.Reconnector.
func (s *session) Reconnect() {
	s.mu.Lock()
	conn := s.conn
	s.conn = nil
	s.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}

// within bounds a request by the time-out. The connection has its own.
func (s *session) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.config.timeout)
}

// Timeout implements mappers.Timeouter.
func (s *session) Timeout() time.Duration { return s.config.timeout }

// connect gives the connection, which it makes within the time-out if there is none. An error is of a request that was not sent.
func (s *session) connect(ctx context.Context) (*connection, error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, mappers.NotSent(ctx.Err())
	}
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		select {
		case <-conn.Done():
			s.noteEnd(conn)
		default:
			return conn, nil
		}
	}
	dialed, err := wire.Dial(ctx, s.config.options)
	if err != nil {
		return nil, mappers.NotSent(fmt.Errorf("%s: %w", s.config.options.URL, err))
	}
	conn = newConnection(dialed)
	nodes := slices.Concat(s.config.order, s.config.eventNodes())
	for _, m := range s.config.commands {
		nodes = append(nodes[:len(nodes):len(nodes)], m.object, m.node)
	}
	if err := conn.resolve(ctx, nodes, s.device.Tell); err != nil {
		_ = conn.Close()
		return nil, mappers.NotSent(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		return nil, errClosed
	}
	s.conn = conn
	return conn, nil
}

// noteEnd counts the connections that the server ends soon.
func (s *session) noteEnd(conn *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.short++; time.Since(conn.made) > shortLife {
		s.short = 0
	}
}

// refresh makes room for a fresh connection where the server ends each soon.
func (s *session) refresh() {
	s.mu.Lock()
	short := s.short
	s.mu.Unlock()
	if short >= 2 {
		s.Reconnect()
	}
}

// namespaceArray is the server's list of namespaces.
var namespaceArray = wire.NumericID(0, 2255)

// resolve finds the numbers of the namespaces that nodes name. A namespace that the server doesn't have leaves its nodes out.
func (c *connection) resolve(ctx context.Context, fields []*field, tell func(code, message string)) error {
	values, err := c.Read(ctx, []wire.ReadRequest{{Node: namespaceArray, Attribute: wire.AttributeValue}})
	if err != nil {
		return err
	}
	list := values[0].Value.Values
	numbered := ""
	for _, f := range fields {
		node := f.node
		if f.namespace == "" {
			if node.Namespace > 1 && int(node.Namespace) < len(list) {
				uri, _ := list[node.Namespace].(string)
				numbered = fmt.Sprintf("ns=%d may be another namespace after an update of the server: write node as %s", node.Namespace, node.InNamespace(uri))
			}
			c.nodes[f] = node
			continue
		}
		if i := slices.IndexFunc(list, func(x any) bool { return x == any(f.namespace) }); i >= 0 {
			node.Namespace = uint16(i)
			c.nodes[f] = node
		}
	}
	tell("Namespaces", numbered)
	return nil
}

// serverTime is a node that each server has.
var serverTime = wire.NumericID(0, 2258)

// Ping implements mappers.Pinger. It reads the device's variables, where it has any: a server that doesn't reach its device knows the time.
func (s *session) Ping(ctx context.Context) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	var fields []*field
	for _, f := range s.config.order[:min(len(s.config.order), s.limit.Most())] {
		if _, ok := c.nodes[f]; ok {
			fields = append(fields, f)
		}
	}
	if len(fields) > 0 {
		return s.read(ctx, c, fields, map[string]mappers.Reading{})
	}
	_, err = c.Read(ctx, []wire.ReadRequest{{Node: serverTime, Attribute: wire.AttributeValue}})
	return err
}

// Group implements mappers.Grouper.
func (s *session) Group(properties []string) [][]string {
	return slices.Collect(slices.Chunk(properties, s.limit.Most()))
}

// ReadBatch implements mappers.BatchReader.
func (s *session) ReadBatch(ctx context.Context, properties []string) (map[string]mappers.Reading, error) {
	c, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	got := make(map[string]mappers.Reading, len(properties))
	var fields []*field
	for _, name := range properties {
		if f, err := s.field(c, name); err != nil {
			got[name] = mappers.Reading{Err: err}
		} else {
			fields = append(fields, f)
		}
	}
	return got, s.read(ctx, c, fields, got)
}

// field finds a property that the server has.
func (s *session) field(c *connection, name string) (*field, error) {
	f := s.config.fields[name]
	if f == nil {
		return nil, mappers.Refuse(mappers.NotReachable, "the model has no opcua visitor for %s", name)
	}
	if _, ok := c.nodes[f]; !ok {
		return nil, mappers.Refuse(mappers.NotReachable, "the server has no namespace %s", f.namespace)
	}
	return f, nil
}

func (s *session) read(ctx context.Context, c *connection, fields []*field, got map[string]mappers.Reading) error {
	if len(fields) == 0 {
		return nil
	}
	requests := make([]wire.ReadRequest, len(fields))
	for i, f := range fields {
		requests[i] = wire.ReadRequest{Node: c.nodes[f], Attribute: wire.AttributeValue, Range: f.index}
	}
	values, err := c.Read(ctx, requests)
	if (errors.Is(err, wire.BadTooManyOperations) || errors.Is(err, wire.BadEncodingLimitsExceeded)) && len(fields) > 1 {
		half := (len(fields) + 1) / 2
		s.limit.Learn(half, "reads at most %d nodes at once: set maxNodes")
		if err := s.read(ctx, c, fields[:half], got); err != nil {
			return err
		}
		return s.read(ctx, c, fields[half:], got)
	}
	if isBusy(err) {
		return mappers.Busy(err)
	}
	if err != nil {
		return err
	}
	silent := 0
	for i, f := range fields {
		if values[i].Value, err = c.types.open(ctx, values[i].Value); err != nil {
			return err
		}
		got[f.name] = f.reading(values[i])
		s.learnKind(f, values[i].Value)
		values[i].Value = wire.Value{} // a structure is larger than its text
		if saysNothing(values[i].Status) {
			silent++
		}
	}
	if silent == len(fields) { // the server answers, and not the device
		return mappers.NotTheDevice(errors.New(got[fields[0].name].Err.Error()))
	}
	return nil
}

func (s *session) learnKind(f *field, v wire.Value) {
	if v.Kind == wire.KindNull {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[f] = valueKind{v.Kind, v.Array && (f.index == "" || len(v.Values) != 1)}
}

// kindOf is as what a property is written: as it was read, or as its data type says.
func (s *session) kindOf(ctx context.Context, c *connection, f *field) (valueKind, error) {
	s.mu.Lock()
	k, ok := s.kinds[f]
	s.mu.Unlock()
	if ok {
		return k, nil
	}
	values, err := c.Read(ctx, []wire.ReadRequest{
		{Node: c.nodes[f], Attribute: wire.AttributeValue, Range: f.index}, {Node: c.nodes[f], Attribute: wire.AttributeDataType},
	})
	if err != nil {
		return k, mappers.NotSent(fmt.Errorf("%s: its type is not known: %w", f.node, err))
	}
	s.learnKind(f, values[0].Value)
	if v := values[0].Value; v.Kind != wire.KindNull {
		return valueKind{v.Kind, v.Array && f.index == ""}, nil
	}
	if list := values[1].Value.Values; len(list) == 1 {
		if id, ok := list[0].(wire.NodeID); ok && wire.BuiltIn(id) != wire.KindNull {
			return valueKind{wire.BuiltIn(id), f.spec.Type == mappers.Array}, nil
		}
	}
	return k, mappers.Refuse(mappers.NotReachable, "%s: the server doesn't say as what it is written", f.node)
}

// Write implements mappers.Writer.
func (s *session) Write(ctx context.Context, property, value string) error {
	s.refresh()
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	f, err := s.field(c, property)
	if err != nil {
		return err
	}
	err = s.write(ctx, c, f, value)
	if errors.Is(err, wire.BadTypeMismatch) { // it has another type than when it was read
		s.mu.Lock()
		delete(s.kinds, f)
		s.mu.Unlock()
		err = s.write(ctx, c, f, value)
	}
	return f.writeError(value, err)
}

func (s *session) write(ctx context.Context, c *connection, f *field, value string) error {
	k, err := s.kindOf(ctx, c, f)
	if err != nil {
		return err
	}
	if k.kind == wire.KindStructure {
		return s.writeStructure(ctx, c, f, value)
	}
	v, err := encode(value, k.kind, k.array)
	if err != nil {
		return err
	}
	if f.index != "" && !v.Array { // a part of an array is an array
		v.Array = true
	}
	return c.Write(ctx, c.nodes[f], f.index, v)
}

// writeStructure writes a structure. The members that are not set are written as they were read a moment before.
func (s *session) writeStructure(ctx context.Context, c *connection, f *field, value string) error {
	values, err := c.Read(ctx, []wire.ReadRequest{{Node: c.nodes[f], Attribute: wire.AttributeValue, Range: f.index}})
	if err == nil && !values[0].Status.IsGood() {
		return mappers.Refuse(mappers.Unavailable, "%s is written as it is read but for what changes: the server says %v", f.node, values[0].Status)
	}
	var v wire.Value
	if err == nil {
		v, err = c.types.open(ctx, values[0].Value)
	}
	if err != nil {
		return mappers.NotSent(err)
	}
	one := f.isOne(v)
	v.Array = v.Array && !one
	if v, err = f.changed(v, value); err != nil {
		return err
	}
	v.Array = v.Array || one
	return c.Write(ctx, c.nodes[f], f.index, v)
}

// Nearest implements mappers.Rounder: a Float has 24 bits.
func (s *session) Nearest(property, value string) (string, error) {
	f := s.config.fields[property]
	s.mu.Lock()
	k, ok := s.kinds[f]
	s.mu.Unlock()
	if !ok || k.array || k.kind == wire.KindStructure {
		return value, nil
	}
	v, err := encode(value, k.kind, false)
	if err != nil {
		return "", err
	}
	return f.text(k.kind, v.Values[0])
}

// Command implements mappers.Commander: it calls a method. Its one argument is the payload; several are a list in JSON. What the method
// returns is the answer: one value, or a list.
func (s *session) Command(ctx context.Context, name string, payload []byte) ([]byte, error) {
	m := s.config.commands[name]
	if m == nil {
		return nil, mappers.Refuse(mappers.NotReachable, "the model has no opcua visitor for the command %s", name)
	}
	s.refresh()
	c, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	object, hasObject := c.nodes[m.object]
	node, hasNode := c.nodes[m.node]
	if !hasObject || !hasNode {
		return nil, mappers.Refuse(mappers.NotReachable, "the server has no namespace %s%s", m.object.namespace, m.node.namespace)
	}
	inputs, err := inputArguments(ctx, c.Session, node)
	if err != nil {
		return nil, err
	}
	arguments, err := encodeArguments(inputs, string(payload))
	if err != nil {
		return nil, err
	}
	results, err := c.Call(ctx, object, node, arguments)
	var status wire.Status
	if errors.Is(err, wire.ErrNotSent) || errors.As(err, &status) && status.HasNoSession() {
		return nil, mappers.NotSent(err)
	}
	if errors.As(err, &status) {
		return nil, mappers.Refuse(mappers.Rejected, "%s: the server says %v", name, err)
	}
	if err != nil {
		return nil, err
	}
	for i := range results {
		if results[i], err = c.types.open(ctx, results[i]); err != nil {
			return nil, err
		}
	}
	return m.node.results(results)
}
