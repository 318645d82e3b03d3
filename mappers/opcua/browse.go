package opcua

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/edgebus/edgebus/mappers/cmd"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
)

// What a walk through a server begins with, and leaves out.
var (
	serverObject = wire.NumericID(0, 2253)
	methodInputs = "InputArguments"
)

const (
	maxDepth = 20
	maxNodes = 10000
)

// treeBrowser walks through a server's objects.
type treeBrowser struct {
	session    *wire.Session
	namespaces []any
	filter     string // of paths, in lower case
	progress   io.Writer
	seen       map[wire.NodeID]bool
	found      cmd.FoundDevice
}

func newTreeBrowser(ctx context.Context, s *wire.Session, filter string, progress io.Writer) (*treeBrowser, error) {
	values, err := s.Read(ctx, []wire.ReadRequest{{Node: namespaceArray, Attribute: wire.AttributeValue}})
	if err != nil {
		return nil, err
	}
	return &treeBrowser{session: s, namespaces: values[0].Value.Values, filter: strings.ToLower(filter), progress: progress, seen: map[wire.NodeID]bool{}}, nil
}

// reference is a node as a model names it.
func (b *treeBrowser) reference(n wire.NodeID) string {
	if n.Namespace == 0 || int(n.Namespace) >= len(b.namespaces) {
		return n.String()
	}
	uri, _ := b.namespaces[n.Namespace].(string)
	return n.InNamespace(uri)
}

// walk adds what is below a node. path has the names on the way to it.
func (b *treeBrowser) walk(ctx context.Context, node wire.NodeID, path []string, object wire.NodeID) error {
	if len(path) > maxDepth || len(b.seen) > maxNodes {
		return fmt.Errorf("the server has more than %d nodes, or deeper than %d: begin with one of them by --root", maxNodes, maxDepth)
	}
	refs, err := b.session.Browse(ctx, node, false)
	if err != nil {
		return fmt.Errorf("browse %s: %w", node, err)
	}
	for _, ref := range refs {
		if b.seen[ref.Node] || ref.Node == serverObject {
			continue
		}
		b.seen[ref.Node] = true
		if len(b.seen)%200 == 0 {
			_, _ = fmt.Fprintf(b.progress, "%d nodes so far\n", len(b.seen))
		}
		name := ref.DisplayName
		if name == "" {
			name = ref.BrowseName
		}
		at := append(path[:len(path):len(path)], name)
		wanted := b.filter == "" || strings.Contains(strings.ToLower(strings.Join(at, "/")), b.filter)
		switch {
		case ref.Class == wire.ClassVariable && wanted:
			if err := b.variable(ctx, ref.Node, at); err != nil {
				return err
			}
		case ref.Class == wire.ClassMethod && wanted:
			if err := b.method(ctx, ref.Node, node, at); err != nil {
				return err
			}
		case ref.Class == wire.ClassObject:
			if err := b.walk(ctx, ref.Node, at, ref.Node); err != nil {
				return err
			}
		}
	}
	return nil
}

// propertyTypes are those of a model by built-in types.
var propertyTypes = map[wire.Kind]string{
	wire.KindBoolean: "boolean", wire.KindSByte: "int", wire.KindByte: "int", wire.KindInt16: "int", wire.KindUInt16: "int", wire.KindInt32: "int",
	wire.KindUInt32: "int", wire.KindInt64: "int", wire.KindUInt64: "int", wire.KindFloat: "float", wire.KindDouble: "double",
	wire.KindByteString: "bytes",
}

// accessWrite is the bit of an access level that a user may write.
const accessWrite = 2

func (b *treeBrowser) variable(ctx context.Context, node wire.NodeID, path []string) error {
	values, err := b.session.Read(ctx, []wire.ReadRequest{
		{Node: node, Attribute: wire.AttributeValue}, {Node: node, Attribute: wire.AttributeAccessLevel}, {Node: node, Attribute: wire.AttributeDescription},
	})
	if err != nil {
		return err
	}
	value := values[0].Value
	if value.Kind == wire.KindStructure {
		return nil
	}
	p := cmd.FoundProperty{Name: strings.Join(path, " "), Title: path[len(path)-1], Type: propertyTypes[value.Kind], Config: map[string]string{"node": b.reference(node)}}
	if p.Type == "" {
		p.Type = "string"
	}
	if value.Array {
		p.Type = "array"
	}
	if level := values[1].Value.Values; len(level) == 1 {
		n, _ := level[0].(uint64)
		p.Writable = n&accessWrite != 0
	}
	refs, err := b.session.Browse(ctx, node, true)
	if err != nil && !isStatus(err) {
		return err
	}
	for _, ref := range refs {
		if ref.BrowseName != "EngineeringUnits" && ref.BrowseName != "EURange" {
			continue
		}
		v, err := b.session.Read(ctx, []wire.ReadRequest{{Node: ref.Node, Attribute: wire.AttributeValue}})
		if err != nil {
			return err
		}
		if ref.BrowseName == "EngineeringUnits" {
			p.Unit = wire.UnitName(v[0].Value)
		} else if low, high, ok := wire.UnitRange(v[0].Value); ok && p.Writable && (p.Type == "float" || p.Type == "double" || p.Type == "int") {
			p.Minimum, p.Maximum = &low, &high
		}
	}
	b.found.Properties = append(b.found.Properties, p)
	return nil
}

func isStatus(err error) bool {
	var s wire.Status
	return errors.As(err, &s)
}

func (b *treeBrowser) method(ctx context.Context, node, object wire.NodeID, path []string) error {
	arguments, err := inputArguments(ctx, b.session, node)
	if err != nil && !isStatus(err) {
		return err
	}
	c := cmd.FoundCommand{Name: strings.Join(path, " "), Config: map[string]string{"object": b.reference(object), "method": b.reference(node)}}
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
