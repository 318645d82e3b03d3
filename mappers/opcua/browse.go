// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/edgebus/edgebus/mappers/cmd"
	"github.com/edgebus/edgebus/mappers/jsonpath"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
)

// What a walk through a server begins with, and leaves out.
var (
	serverObject = wire.NumericID(0, 2253)
	methodInputs = "InputArguments"
)

// The bounds of a walk: what is beyond them is left out, and told.
const (
	maxDepth   = 20
	maxNodes   = 10000
	maxMembers = 50   // of one structure that become properties
	maxFound   = 4096 // properties, or commands: a model has no more
)

// treeBrowser walks through a server's objects.
type treeBrowser struct {
	conn       *connection
	namespaces []any
	filter     string // of paths, in lower case
	progress   io.Writer
	seen       map[wire.NodeID]bool
	found      cmd.FoundDevice
	left       leftOut
}

// leftOut is what a walk leaves out, by the reason: how often, and where at first.
type leftOut struct {
	reasons []string
	counts  map[string]int
	first   map[string]string
}

func (l *leftOut) add(reason string, path []string) {
	if l.counts == nil {
		l.counts, l.first = map[string]int{}, map[string]string{}
	}
	if l.counts[reason] == 0 {
		l.reasons = append(l.reasons, reason)
		l.first[reason] = strings.Join(path, "/")
	}
	l.counts[reason]++
}

func (l *leftOut) tell(w io.Writer) {
	for _, reason := range l.reasons {
		_, _ = fmt.Fprintf(w, "left out: %s: %d times, first %s\n", reason, l.counts[reason], clipText(l.first[reason]))
	}
}

func newTreeBrowser(ctx context.Context, s *wire.Session, filter string, progress io.Writer) (*treeBrowser, error) {
	values, err := s.Read(ctx, []wire.ReadRequest{{Node: namespaceArray, Attribute: wire.AttributeValue}})
	if err != nil {
		return nil, err
	}
	return &treeBrowser{
		conn: newConnection(s), namespaces: values[0].Value.Values, filter: strings.ToLower(filter), progress: progress, seen: map[wire.NodeID]bool{},
	}, nil
}

// reference is a node as a model names it.
func (b *treeBrowser) reference(n wire.NodeID) string {
	if n.Namespace == 0 || int(n.Namespace) >= len(b.namespaces) {
		return n.String()
	}
	uri, _ := b.namespaces[n.Namespace].(string)
	return n.InNamespace(uri)
}

// walk adds what is below a node. path has the names on the way to it. A node that is reached by several ways is added once.
func (b *treeBrowser) walk(ctx context.Context, node wire.NodeID, path []string) error {
	if len(path) > maxDepth {
		b.left.add(fmt.Sprintf("what is deeper than %d (begin there by --root)", maxDepth), path)
		return nil
	}
	refs, err := b.conn.Browse(ctx, node, false)
	if isStatus(err) && len(path) > 0 {
		b.left.add(fmt.Sprintf("what can't be browsed: %v", err), path)
		return nil
	}
	if err != nil {
		return fmt.Errorf("browse %s: %w", node, err)
	}
	for _, ref := range refs {
		if b.seen[ref.Node] || ref.Node == serverObject {
			continue
		}
		at := append(path[:len(path):len(path)], shownName(ref))
		if len(b.seen) >= maxNodes {
			b.left.add(fmt.Sprintf("what is beyond %d nodes (begin there by --root)", maxNodes), at)
			continue
		}
		b.seen[ref.Node] = true
		if len(b.seen)%1000 == 0 {
			_, _ = fmt.Fprintf(b.progress, "%d nodes so far\n", len(b.seen))
		}
		wanted := b.filter == "" || strings.Contains(strings.ToLower(strings.Join(at, "/")), b.filter)
		switch {
		case wanted && ref.Class == wire.ClassVariable && len(b.found.Properties) >= maxFound, wanted && ref.Class == wire.ClassMethod && len(b.found.Commands) >= maxFound:
			b.left.add(fmt.Sprintf("what is beyond the %d of a model (choose by --filter or --root)", maxFound), at)
		case ref.Class == wire.ClassVariable && wanted:
			err = b.variable(ctx, ref.Node, at)
		case ref.Class == wire.ClassMethod && wanted:
			err = b.method(ctx, ref.Node, node, at)
		case ref.Class == wire.ClassObject:
			err = b.walk(ctx, ref.Node, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shownName is what people see of a node.
func shownName(ref wire.Reference) string {
	for _, name := range []string{ref.DisplayName, ref.BrowseName, ref.Node.String()} {
		if name = strings.Join(strings.Fields(strings.ToValidUTF8(name, "")), " "); name != "" {
			return name
		}
	}
	return "node"
}

// pathName is the name of what has a path: the end of it, if all of it is too long.
func pathName(path []string) string {
	for len(path) > 1 && len(strings.Join(path, " ")) > mostName {
		path = path[1:]
	}
	return strings.Join(path, " ")
}

// mostName is how long names of properties are at most.
const mostName = 63

// propertyTypes are those of a model by built-in types.
var propertyTypes = map[wire.Kind]string{
	wire.KindBoolean: "boolean", wire.KindSByte: "int", wire.KindByte: "int", wire.KindInt16: "int", wire.KindUInt16: "int", wire.KindInt32: "int",
	wire.KindUInt32: "int", wire.KindInt64: "int", wire.KindUInt64: "int", wire.KindFloat: "float", wire.KindDouble: "double",
	wire.KindByteString: "bytes",
}

// accessWrite is the bit of an access level that a user may write.
const accessWrite = 2

func (b *treeBrowser) variable(ctx context.Context, node wire.NodeID, path []string) error {
	values, err := b.conn.Read(ctx, []wire.ReadRequest{{Node: node, Attribute: wire.AttributeValue}, {Node: node, Attribute: wire.AttributeAccessLevel}})
	if isStatus(err) {
		b.left.add(fmt.Sprintf("what can't be read: %v", err), path)
		return nil
	}
	if err != nil {
		return err
	}
	p := cmd.FoundProperty{Name: pathName(path), Title: path[len(path)-1], Config: map[string]string{"node": b.reference(node)}}
	if level := values[1].Value.Values; len(level) == 1 {
		n, _ := level[0].(uint64)
		p.Writable = n&accessWrite != 0
	}
	value := values[0].Value
	if value.Kind == wire.KindNull {
		if value, err = b.emptyValue(ctx, node); err != nil {
			return err
		}
	}
	if value, err = b.conn.types.open(ctx, value); err != nil {
		return err
	}
	if value.Kind == wire.KindStructure {
		b.structure(value, p, path)
		return nil
	}
	p.Type = propertyType(value)
	if p.Type == "float" || p.Type == "double" || p.Type == "int" { // others have no units
		if err := b.unit(ctx, node, &p); err != nil {
			return err
		}
	}
	b.found.Properties = append(b.found.Properties, p)
	return nil
}

// emptyValue is a value of the type of a variable that has none at the moment.
func (b *treeBrowser) emptyValue(ctx context.Context, node wire.NodeID) (wire.Value, error) {
	values, err := b.conn.Read(ctx, []wire.ReadRequest{{Node: node, Attribute: wire.AttributeDataType}, {Node: node, Attribute: wire.AttributeValueRank}})
	if err != nil {
		return wire.Value{}, err
	}
	v := wire.Value{Kind: wire.KindString}
	if list := values[0].Value.Values; len(list) == 1 {
		if id, ok := list[0].(wire.NodeID); ok && wire.BuiltIn(id) != wire.KindNull {
			v.Kind = wire.BuiltIn(id)
		}
	}
	if list := values[1].Value.Values; len(list) == 1 {
		rank, _ := list[0].(int64)
		v.Array = rank >= 0
	}
	return v, nil
}

func propertyType(v wire.Value) string {
	if v.Array {
		return "array"
	}
	if t := propertyTypes[v.Kind]; t != "" {
		return t
	}
	return "string"
}

// structure adds the members of a structure, and those of structures in it, each as a property.
func (b *treeBrowser) structure(v wire.Value, p cmd.FoundProperty, path []string) {
	if v.Array {
		p.Type = "array"
		b.found.Properties = append(b.found.Properties, p)
		return
	}
	members := membersOf(v)
	if members == nil {
		b.left.add("structures of types that the server doesn't describe", path)
		return
	}
	added := max(0, len(b.found.Properties)+maxMembers-maxFound) // as if so many were there already
	b.members(members, p, path, nil, &added)
	if added > maxMembers {
		b.left.add(fmt.Sprintf("members of structures that have more than %d (their node, without path, has all)", maxMembers), path)
	}
}

func (b *treeBrowser) members(members wire.Members, p cmd.FoundProperty, path []string, at jsonpath.Path, added *int) {
	for _, m := range members {
		names := append(path[:len(path):len(path)], m.Name)
		where := append(at[:len(at):len(at)], m.Name)
		if inner := membersOf(m.Value); inner != nil {
			b.members(inner, p, names, where, added)
			continue
		}
		if *added++; *added > maxMembers {
			return
		}
		member := p
		member.Name, member.Title, member.Type = pathName(names), m.Name, propertyType(m.Value)
		member.Config = map[string]string{"node": p.Config["node"], "path": formatPath(where)}
		b.found.Properties = append(b.found.Properties, member)
	}
}

// unit adds a number's unit, and its range if it can be written.
func (b *treeBrowser) unit(ctx context.Context, node wire.NodeID, p *cmd.FoundProperty) error {
	refs, err := b.conn.Browse(ctx, node, true)
	if err != nil && !isStatus(err) {
		return err
	}
	for _, ref := range refs {
		if ref.BrowseName != "EngineeringUnits" && ref.BrowseName != "EURange" {
			continue
		}
		v, err := b.conn.Read(ctx, []wire.ReadRequest{{Node: ref.Node, Attribute: wire.AttributeValue}})
		if err != nil {
			return err
		}
		if ref.BrowseName == "EngineeringUnits" {
			p.Unit = wire.UnitName(v[0].Value)
		} else if low, high, ok := wire.UnitRange(v[0].Value); ok && p.Writable {
			p.Minimum, p.Maximum = &low, &high
		}
	}
	return nil
}

func isStatus(err error) bool {
	var s wire.Status
	return errors.As(err, &s)
}

func (b *treeBrowser) method(ctx context.Context, node, object wire.NodeID, path []string) error {
	arguments, err := inputArguments(ctx, b.conn.Session, node)
	if err != nil && !isStatus(err) {
		return err
	}
	c := cmd.FoundCommand{Name: pathName(path), Config: map[string]string{"object": b.reference(object), "method": b.reference(node)}}
	switch len(arguments) {
	case 0:
	case 1:
		if c.Type = propertyTypes[wire.BuiltIn(arguments[0].Type)]; c.Type == "" {
			c.Type = "string"
		}
		if arguments[0].Array {
			c.Type = "array"
		}
	default:
		c.Type = "array"
	}
	b.found.Commands = append(b.found.Commands, c)
	return nil
}

// inputArguments are what a method takes.
func inputArguments(ctx context.Context, s *wire.Session, method wire.NodeID) ([]wire.MethodArgument, error) {
	refs, err := s.Browse(ctx, method, true)
	if err != nil {
		return nil, err
	}
	for _, ref := range refs {
		if ref.BrowseName == methodInputs {
			v, err := s.Read(ctx, []wire.ReadRequest{{Node: ref.Node, Attribute: wire.AttributeValue}})
			if err != nil {
				return nil, err
			}
			return wire.MethodArguments(v[0].Value)
		}
	}
	return nil, nil
}

// printEndpoints lists what a server offers.
func printEndpoints(list []wire.Endpoint, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "POLICY\tMODE\tURL\tCERTIFICATE (SHA-256)")
	for _, e := range list {
		print := "-"
		if len(e.Cert) > 0 {
			print = wire.Fingerprint(e.Cert)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", e.Policy, e.Mode, e.URL, print)
	}
	return w.Flush()
}
