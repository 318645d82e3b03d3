// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The numbers of services.
const (
	idBrowseRequest          = 527
	idBrowseResponse         = 530
	idBrowseNextRequest      = 533
	idBrowseNextResponse     = 536
	idReadRequest            = 631
	idReadResponse           = 634
	idWriteRequest           = 673
	idWriteResponse          = 676
	idCallRequest            = 712
	idCallResponse           = 715
	idArgument               = 298
	idStructureDefinition    = 122
	idEUInformation          = 889
	idRange                  = 886
	referencesHierarchical   = 33
	referencesHasEncoding    = 38
	referencesHasDescription = 39
	referencesHasSubtype     = 45
	referencesHasProperty    = 46
	referencesHasComponent   = 47
	browseForward            = 0
	browseInverse            = 1
	maxReferences            = 1000
	maxBrowsed               = 20000 // references of one node
	resultMaskAll            = 63
	readTimestampsSource     = 0
)

// Attribute is the number of a node's attribute.
type Attribute uint32

// The attributes that are read.
const (
	AttributeNodeClass   Attribute = 2
	AttributeBrowseName  Attribute = 3
	AttributeDisplayName Attribute = 4
	AttributeDescription Attribute = 5
	AttributeValue       Attribute = 13
	AttributeDataType    Attribute = 14
	AttributeValueRank   Attribute = 15
	AttributeAccessLevel Attribute = 18

	AttributeEventNotifier      Attribute = 12
	AttributeDataTypeDefinition Attribute = 23
)

// ReadRequest is an attribute of a node.
type ReadRequest struct {
	Node      NodeID
	Attribute Attribute
	Range     string // of an array: 3 or 2:5; empty: all
}

// Read reads attributes; each has its own status.
func (s *Session) Read(ctx context.Context, requests []ReadRequest) ([]DataValue, error) {
	r, err := s.call(ctx, idReadRequest, idReadResponse, func(w *writer) {
		w.double(0)
		w.uint32(readTimestampsSource)
		w.uint32(uint32(len(requests)))
		for _, q := range requests {
			w.readValueID(q)
		}
	})
	if err != nil {
		return nil, err
	}
	values := readList(r, 1, func() DataValue { return r.dataValue(0) })
	if r.err == nil && len(values) != len(requests) {
		r.err = fmt.Errorf("%d values were answered, and %d asked for", len(values), len(requests))
	}
	return values, r.err
}

func (w *writer) readValueID(q ReadRequest) {
	w.nodeID(q.Node)
	w.uint32(uint32(q.Attribute))
	w.string(q.Range)
	w.uint16(0)
	w.string("")
}

// Write sets the value of a node, or of a part of an array.
func (s *Session) Write(ctx context.Context, node NodeID, indexRange string, v Value) error {
	var bad error
	message := func(w *writer) {
		w.uint32(1)
		w.nodeID(node)
		w.uint32(uint32(AttributeValue))
		w.string(indexRange)
		w.byte(1)
		bad = w.value(v)
	}
	if message(&writer{}); bad != nil {
		return bad
	}
	r, err := s.call(ctx, idWriteRequest, idWriteResponse, message)
	if err != nil {
		return err
	}
	return oneStatus(r)
}

func oneStatus(r *reader) error {
	results := readList(r, 4, func() Status { return Status(r.uint32()) })
	switch {
	case r.err != nil:
		return r.err
	case len(results) != 1:
		return fmt.Errorf("%d results were answered to one request", len(results))
	case !results[0].IsGood():
		return results[0]
	}
	return nil
}

// Call calls a method of an object. The error may be of one argument.
func (s *Session) Call(ctx context.Context, object, method NodeID, arguments []Value) ([]Value, error) {
	var bad error
	message := func(w *writer) {
		w.uint32(1)
		w.nodeID(object)
		w.nodeID(method)
		w.uint32(uint32(len(arguments)))
		for _, a := range arguments {
			bad = errors.Join(bad, w.value(a))
		}
	}
	if message(&writer{}); bad != nil {
		return nil, bad
	}
	r, err := s.call(ctx, idCallRequest, idCallResponse, message)
	if err != nil {
		return nil, err
	}
	if n := r.count(4); n != 1 && r.err == nil {
		return nil, fmt.Errorf("%d results were answered to one call", n)
	}
	status := Status(r.uint32())
	inputs := readList(r, 4, func() Status { return Status(r.uint32()) })
	r.diagnosticsList()
	out := readList(r, 1, func() Value { return r.value(0) })
	if r.err != nil {
		return nil, r.err
	}
	for i, in := range inputs {
		if in.IsBad() {
			return nil, fmt.Errorf("argument %d: %w", i+1, in)
		}
	}
	if status.IsBad() {
		return nil, status
	}
	return out, nil
}

// NodeClass is the kind of a node.
type NodeClass uint32

// The kinds of nodes that are browsed.
const (
	ClassObject   NodeClass = 1
	ClassVariable NodeClass = 2
	ClassMethod   NodeClass = 4
)

// Reference is a node below another.
type Reference struct {
	Node        NodeID
	Class       NodeClass
	BrowseName  string
	DisplayName string
	Type        NodeID

	elsewhere bool // the node is another server's
}

// Browse lists what is below a node: objects, variables and methods, or its properties.
func (s *Session) Browse(ctx context.Context, node NodeID, properties bool) ([]Reference, error) {
	q := browseQuery{node: node, kind: referencesHierarchical, classes: ClassObject | ClassVariable | ClassMethod}
	if properties {
		q.kind = referencesHasProperty
	}
	return s.browse(ctx, q)
}

// browseQuery says which references of a node are listed.
type browseQuery struct {
	node    NodeID
	kind    uint32 // of reference, and those that are derived from it
	inverse bool
	classes NodeClass // of the nodes there; 0: any
}

func (s *Session) browse(ctx context.Context, q browseQuery) (out []Reference, err error) {
	direction := uint32(browseForward)
	if q.inverse {
		direction = browseInverse
	}
	r, err := s.call(ctx, idBrowseRequest, idBrowseResponse, func(w *writer) {
		w.nodeID(NodeID{})
		w.time(time.Time{})
		w.uint32(0)
		w.uint32(maxReferences)
		w.uint32(1)
		w.nodeID(q.node)
		w.uint32(direction)
		w.nodeID(NumericID(0, q.kind))
		w.bool(true)
		w.uint32(uint32(q.classes))
		w.uint32(resultMaskAll)
	})
	for pages := 0; err == nil; pages++ {
		var more []byte
		var page []Reference
		if page, more, err = r.browseResult(); err != nil {
			break
		}
		if out = append(out, page...); len(more) == 0 || len(out) >= maxBrowsed || pages > 1000 {
			break
		}
		r, err = s.call(ctx, idBrowseNextRequest, idBrowseNextResponse, func(w *writer) {
			w.bool(false)
			w.uint32(1)
			w.bytes(more)
		})
	}
	return out, err
}

func (r *reader) browseResult() (refs []Reference, more []byte, err error) {
	if n := r.count(9); n != 1 && r.err == nil {
		return nil, nil, fmt.Errorf("%d results were answered to one browse", n)
	}
	status := Status(r.uint32())
	more = r.bytes()
	refs = readList(r, 10, func() (f Reference) {
		r.nodeID()
		r.bool()
		f.Node, f.elsewhere = r.expandedID()
		f.BrowseName, f.DisplayName = clipName(r.qualifiedName()), clipName(r.localizedText())
		f.Class = NodeClass(r.uint32())
		f.Type = r.nodeID()
		return f
	})
	if r.err == nil && status.IsBad() {
		return nil, nil, status
	}
	return slices.DeleteFunc(refs, func(f Reference) bool { return f.elsewhere }), more, r.err
}

// clipName bounds what is kept of a name.
func clipName(s string) string {
	const most = 512
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(strings.Clone(s[:most]), "")
}

// MethodArgument is one that a method takes or gives.
type MethodArgument struct {
	Name  string
	Type  NodeID // a built-in type's number in namespace 0, or a type that is derived from one
	Array bool
}

// MethodArguments reads the value of InputArguments or OutputArguments.
func MethodArguments(v Value) (out []MethodArgument, err error) {
	for _, x := range v.Values {
		s, ok := x.(Structure)
		if !ok || s.Type != NumericID(0, idArgument) {
			return nil, errors.New("a method's argument is not described as one")
		}
		r := reader{data: s.Body}
		a := MethodArgument{Name: r.string(), Type: r.nodeID()}
		a.Array = int32(r.uint32()) >= 0
		if r.err != nil {
			return nil, r.err
		}
		out = append(out, a)
	}
	return out, nil
}

// UnitName reads the value of EngineeringUnits: the text that people write.
func UnitName(v Value) string {
	if len(v.Values) != 1 {
		return ""
	}
	s, ok := v.Values[0].(Structure)
	if !ok || s.Type != NumericID(0, idEUInformation) {
		return ""
	}
	r := reader{data: s.Body}
	r.bytes()
	r.uint32()
	text := r.localizedText()
	if r.err != nil {
		return ""
	}
	return text
}

// UnitRange reads the value of EURange: the least and the most.
func UnitRange(v Value) (low, high float64, ok bool) {
	if len(v.Values) != 1 {
		return 0, 0, false
	}
	s, is := v.Values[0].(Structure)
	if !is || s.Type != NumericID(0, idRange) {
		return 0, 0, false
	}
	r := reader{data: s.Body}
	low, high = r.double(), r.double()
	return low, high, r.err == nil && low < high
}

// BuiltIn is the built-in type of a data type's identifier, KindNull if it is derived from one.
func BuiltIn(n NodeID) Kind {
	if n.Namespace == 0 && n.kind == 0 && n.number <= uint32(KindDiagnosticInfo) {
		return Kind(n.number)
	}
	return KindNull
}
