package wire

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The numbers of services.
const (
	idBrowseRequest           = 527
	idBrowseResponse          = 530
	idBrowseNextRequest       = 533
	idBrowseNextResponse      = 536
	idReadRequest             = 631
	idReadResponse            = 634
	idWriteRequest            = 673
	idWriteResponse           = 676
	idCallRequest             = 712
	idCallResponse            = 715
	idMonitorRequest          = 751
	idMonitorResponse         = 754
	idSubscribeRequest        = 787
	idSubscribeResponse       = 790
	idDataChange              = 811
	idStatusChange            = 820
	idPublishRequest          = 826
	idPublishResponse         = 829
	idUnsubscribeRequest      = 847
	idUnsubscribeResponse     = 850
	idArgument                = 298
	idEUInformation           = 889
	idRange                   = 886
	referencesHierarchical    = 33
	referencesHasProperty     = 46
	browseForward             = 0
	maxReferences             = 1000
	resultMaskAll             = 63
	monitoringModeReporting   = 2
	monitorTimestampsSource   = 0
	readTimestampsSource      = 0
	publishRequestsAtATime    = 2
	maxNotificationsPerAnswer = 1000
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
	AttributeAccessLevel Attribute = 18
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
}

// Browse lists what is below a node: objects, variables and methods, or its properties.
func (s *Session) Browse(ctx context.Context, node NodeID, properties bool) (out []Reference, err error) {
	kind := NumericID(0, referencesHierarchical)
	if properties {
		kind = NumericID(0, referencesHasProperty)
	}
	r, err := s.call(ctx, idBrowseRequest, idBrowseResponse, func(w *writer) {
		w.nodeID(NodeID{})
		w.time(time.Time{})
		w.uint32(0)
		w.uint32(maxReferences)
		w.uint32(1)
		w.nodeID(node)
		w.uint32(browseForward)
		w.nodeID(kind)
		w.bool(true)
		w.uint32(uint32(ClassObject | ClassVariable | ClassMethod))
		w.uint32(resultMaskAll)
	})
	for pages := 0; err == nil; pages++ {
		var more []byte
		var page []Reference
		if page, more, err = r.browseResult(); err != nil {
			break
		}
		if out = append(out, page...); len(more) == 0 || len(out) > maxElements || pages > 1000 {
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
		f.Node = r.nodeID()
		f.BrowseName, f.DisplayName = r.qualifiedName(), r.localizedText()
		f.Class = NodeClass(r.uint32())
		f.Type = r.nodeID()
		return f
	})
	if r.err == nil && status.IsBad() {
		return nil, nil, status
	}
	return refs, more, r.err
}

// MonitoredItem is a node that a subscription tells of, with how often the server looks at it.
type MonitoredItem struct {
	Node     NodeID
	Range    string
	Sampling time.Duration
}

// Change is a value that a subscription brings, by the place in its list.
type Change struct {
	Item  int
	Value DataValue
}

// Subscribe makes a subscription, and calls told with each change until ctx or the connection ends; the error says why. bad is called once
// for each item that the server refuses. A server that falls silent for three keep-alives has ended.
func (s *Session) Subscribe(ctx context.Context, interval time.Duration, items []MonitoredItem, bad func(item int, err error), told func(Change)) error {
	const keepAlives = 10
	r, err := s.call(ctx, idSubscribeRequest, idSubscribeResponse, func(w *writer) {
		w.double(float64(interval) / float64(time.Millisecond))
		w.uint32(keepAlives * 10)
		w.uint32(keepAlives)
		w.uint32(maxNotificationsPerAnswer)
		w.bool(true)
		w.byte(0)
	})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	id, revised := r.uint32(), r.double()
	r.uint32()
	count := r.uint32()
	if r.err != nil {
		return r.err
	}
	if err := s.monitor(ctx, id, items, bad); err != nil {
		return err
	}
	silence := 3 * max(time.Duration(max(revised, 1)*float64(max(count, 1)))*time.Millisecond, time.Second)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = s.call(ctx, idUnsubscribeRequest, idUnsubscribeResponse, func(w *writer) { w.uint32(1); w.uint32(id) })
	}()
	return s.publishLoop(ctx, id, len(items), min(silence, time.Hour), told)
}

// monitor adds the items, some at a time: a server may have limits.
func (s *Session) monitor(ctx context.Context, id uint32, items []MonitoredItem, bad func(item int, err error)) error {
	const atATime = 100
	for from := 0; from < len(items); from += atATime {
		part := items[from:min(from+atATime, len(items))]
		r, err := s.call(ctx, idMonitorRequest, idMonitorResponse, func(w *writer) {
			w.uint32(id)
			w.uint32(monitorTimestampsSource)
			w.uint32(uint32(len(part)))
			for i, m := range part {
				w.readValueID(ReadRequest{m.Node, AttributeValue, m.Range})
				w.uint32(monitoringModeReporting)
				w.uint32(uint32(from + i))
				w.double(float64(m.Sampling) / float64(time.Millisecond))
				w.nodeID(NodeID{})
				w.byte(0)
				w.uint32(1)
				w.bool(true)
			}
		})
		if err != nil {
			return fmt.Errorf("subscribe to %d nodes: %w", len(part), err)
		}
		results := readList(r, 20, func() Status {
			status := Status(r.uint32())
			r.uint32()
			r.double()
			r.uint32()
			r.extension()
			return status
		})
		if r.err != nil {
			return r.err
		}
		for i, status := range results {
			if status.IsBad() && i < len(part) {
				bad(from+i, status)
			}
		}
	}
	return nil
}

// publishAnswer is an answer to a Publish.
type publishAnswer struct {
	reader *reader
	err    error
}

// publishLoop keeps Publish requests at the server, and hands on what they bring.
func (s *Session) publishLoop(ctx context.Context, id uint32, items int, silence time.Duration, told func(Change)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan publishAnswer)
	ask := func(acknowledge []uint32) {
		r, err := s.publish(ctx, id, acknowledge)
		select {
		case answers <- publishAnswer{r, err}:
		case <-ctx.Done():
		}
	}
	for range publishRequestsAtATime {
		go ask(nil)
	}
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return fmt.Errorf("the subscription has said nothing for %s", silence)
		case p := <-answers:
			if errors.Is(p.err, BadTooManyPublishRequests) { // the other one is there
				continue
			}
			if p.err != nil {
				return p.err
			}
			acknowledge, err := p.reader.notification(id, items, told)
			if err != nil {
				return err
			}
			timer.Reset(silence)
			go ask(acknowledge)
		}
	}
}

func (s *Session) publish(ctx context.Context, id uint32, acknowledge []uint32) (*reader, error) {
	return s.call(ctx, idPublishRequest, idPublishResponse, func(w *writer) {
		w.uint32(uint32(len(acknowledge)))
		for _, number := range acknowledge {
			w.uint32(id)
			w.uint32(number)
		}
	})
}

// notification reads an answer to Publish, and returns the message's number, which is acknowledged, if it has changes.
func (r *reader) notification(id uint32, items int, told func(Change)) (acknowledge []uint32, err error) {
	of := r.uint32()
	for range r.count(4) {
		r.uint32()
	}
	r.bool()
	number := r.uint32()
	r.time()
	data := readList(r, 4, r.extension)
	if r.err != nil || of != id {
		return nil, r.err
	}
	for _, e := range data {
		inner := reader{data: e.body}
		switch e.typeID {
		case NumericID(0, idDataChange):
			for range inner.count(5) {
				handle, value := inner.uint32(), inner.dataValue(0)
				if inner.err != nil {
					return nil, inner.err
				}
				if int(handle) < items {
					told(Change{int(handle), value})
				}
			}
		case NumericID(0, idStatusChange):
			return nil, fmt.Errorf("the subscription has ended: %w", Status(inner.uint32()))
		}
	}
	if len(data) > 0 {
		acknowledge = []uint32{number}
	}
	return acknowledge, nil
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
