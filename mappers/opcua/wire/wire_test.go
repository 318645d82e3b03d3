// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"math"
	"net"
	"testing"
	"time"

	"github.com/gopcua/opcua/id"
	"github.com/gopcua/opcua/server"
	"github.com/gopcua/opcua/ua"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestValuesAreReadBackAsTheyWereWritten(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 123456700, time.UTC)
	node, _, err := ParseNodeID("ns=3;s=Press")
	require.NoError(t, err)
	for _, v := range []Value{
		{},
		{Kind: KindBoolean, Values: []any{true}},
		{Kind: KindSByte, Values: []any{int64(-128)}},
		{Kind: KindByte, Values: []any{uint64(255)}},
		{Kind: KindInt16, Values: []any{int64(-32768)}},
		{Kind: KindUInt16, Values: []any{uint64(65535)}},
		{Kind: KindInt32, Values: []any{int64(math.MinInt32)}},
		{Kind: KindUInt32, Values: []any{uint64(math.MaxUint32)}},
		{Kind: KindInt64, Values: []any{int64(math.MinInt64)}},
		{Kind: KindUInt64, Values: []any{uint64(math.MaxUint64)}},
		{Kind: KindFloat, Values: []any{float32(0.2301)}},
		{Kind: KindDouble, Values: []any{1e300}},
		{Kind: KindString, Values: []any{"Küche"}},
		{Kind: KindDateTime, Values: []any{now}},
		{Kind: KindByteString, Values: []any{[]byte{1, 2}}},
		{Kind: KindNodeID, Values: []any{node}},
		{Kind: KindStatus, Values: []any{BadOutOfRange}},
		{Kind: KindLocalizedText, Values: []any{"on"}},
		{Kind: KindQualifiedName, Values: []any{"name"}},
		{Kind: KindDouble, Array: true, Values: []any{1.0, 2.0}},
		{Kind: KindString, Array: true, Values: []any{}},
	} {
		var w writer
		require.NoError(t, w.value(v))
		r := reader{data: w.data}
		assert.Equal(t, v, r.value(0))
		assert.NoError(t, r.err)
		assert.Empty(t, r.data)
	}
}

func TestNodesAreNamedAsPeopleWriteThem(t *testing.T) {
	for _, text := range []string{"i=2258", "ns=2;s=Temp;High", "ns=300;i=70000", "ns=1;g=09087e75-8e5e-499b-954f-f2a9603db28a", "ns=1;b=AQID"} {
		n, _, err := ParseNodeID(text)
		require.NoError(t, err, text)
		assert.Equal(t, text, n.String())
		var w writer
		w.nodeID(n)
		r := reader{data: w.data}
		assert.Equal(t, n, r.nodeID(), text)
		_, same, err := ParseNodeID(n.InNamespace("http://vendor/a;b"))
		require.NoError(t, err)
		assert.Equal(t, "http://vendor/a;b", same)
	}
	for _, text := range []string{"", "x", "ns=2", "ns=70000;i=1", "i=-1", "nsu=;i=1", "g=12", "b=*"} {
		_, _, err := ParseNodeID(text)
		assert.Error(t, err, text)
	}
}

// startServer starts a server of gopcua's, which has no security; node-opcua, in the interoperability tests, has.
func startServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	s := server.New(server.EndPoint("127.0.0.1", port), server.EnableSecurity("None", ua.MessageSecurityModeNone), server.EnableAuthMode(ua.UserTokenTypeAnonymous))
	ns := server.NewNodeNameSpace(s, "http://test/press")
	top, _ := s.Namespace(0)
	top.Objects().AddRef(ns.Objects(), id.HasComponent, true)
	ns.Objects().AddRef(ns.AddNewVariableStringNode("temperature", float64(21.5)), id.HasComponent, true)
	ns.Objects().AddRef(ns.AddNewVariableStringNode("count", int32(7)), id.HasComponent, true)
	require.NoError(t, s.Start(context.Background()))
	return "opc.tcp://" + l.Addr().String()
}

func TestAServerIsReadWrittenBrowsedAndSubscribedTo(t *testing.T) {
	url := startServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := Dial(ctx, Options{URL: url, Name: "test", SessionTimeout: time.Minute})
	require.NoError(t, err)
	defer func() { _ = s.Close() }()
	assert.Equal(t, PolicyNone, s.Endpoint.Policy)
	temperature, _, err := ParseNodeID("ns=1;s=temperature")
	require.NoError(t, err)
	nothing, _, err := ParseNodeID("ns=1;s=nothing")
	require.NoError(t, err)
	values, err := s.Read(ctx, []ReadRequest{{temperature, AttributeValue, ""}, {nothing, AttributeValue, ""}})
	require.NoError(t, err)
	assert.Equal(t, []any{21.5}, values[0].Value.Values)
	assert.ErrorIs(t, values[1].Status, BadNodeIDUnknown)

	changes := make(chan Change, 10)
	ended := make(chan error, 1)
	subscribed, stop := context.WithCancel(ctx)
	go func() {
		ended <- s.Subscribe(subscribed, 50*time.Millisecond, []MonitoredItem{{Node: temperature, Sampling: 50 * time.Millisecond}}, func(int, error) {}, func(c Change) { changes <- c })
	}()
	assert.Equal(t, []any{21.5}, (<-changes).Value.Value.Values)
	require.NoError(t, s.Write(ctx, temperature, "", Value{Kind: KindDouble, Values: []any{23.0}}))
	assert.Equal(t, []any{23.0}, (<-changes).Value.Value.Values)
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)

	refs, err := s.Browse(ctx, NumericID(0, id.ObjectsFolder), false)
	require.NoError(t, err)
	assert.NotEmpty(t, refs)
}

// The keys of both sides open what the other has sealed, with each policy.
func TestEachPolicyOpensWhatItSeals(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	for _, p := range Policies[1:] {
		text := make([]byte, 3*p.plainBlock(&key.PublicKey))
		sealed, err := p.encryptRSA(&key.PublicKey, text)
		require.NoError(t, err)
		opened, err := p.decryptRSA(key, sealed)
		require.NoError(t, err)
		assert.Equal(t, text, opened)
		signature, err := p.signRSA(key, text)
		require.NoError(t, err)
		require.NoError(t, p.verifyRSA(&key.PublicKey, text, signature))
		text[0]++
		require.Error(t, p.verifyRSA(&key.PublicKey, text, signature))
		keys := p.deriveKeys(newNonce(), newNonce())
		assert.Len(t, keys.encryption, p.aesKey())
		message := make([]byte, 64)
		require.NoError(t, keys.encrypt(message))
		require.NoError(t, keys.decrypt(message))
		assert.Equal(t, make([]byte, 64), message)
		require.Error(t, keys.decrypt(message[:63]))
	}
}

func TestAnswersThatNeverEndTakeABoundedMemory(t *testing.T) {
	take := func(each func(c *secureChannel, request uint32) error) (c *secureChannel, err error) {
		c = &secureChannel{parts: map[uint32][]byte{}, chunks: map[uint32]int{}, receive: map[uint32]symmetricKeys{0: {}}, sec: channelSecurity{policy: PolicyNone, mode: ModeNone}}
		for n := range uint32(5000) {
			if err = each(c, n); err != nil {
				break
			}
		}
		return c, err
	}
	chunk := func(c *secureChannel, kind string, request uint32, body []byte) error {
		w := writer{}
		for _, x := range []uint32{0, 0, request % 1000, request} {
			w.uint32(x)
		}
		return c.take(kind, append(w.data, body...))
	}
	c, err := take(func(c *secureChannel, n uint32) error { return chunk(c, "MSGC", n%32, make([]byte, 60000)) })
	require.ErrorContains(t, err, "answers have more than")
	total := 0
	for _, part := range c.parts {
		total += len(part)
	}
	assert.LessOrEqual(t, total, maxMessage)
	c, err = take(func(c *secureChannel, n uint32) error {
		if err := chunk(c, "MSGC", n, []byte{1}); err != nil {
			return err
		}
		return chunk(c, "MSGA", n, make([]byte, 8))
	})
	require.NoError(t, err, "each is given up")
	assert.Empty(t, c.parts)
	assert.Empty(t, c.chunks)
	assert.Zero(t, c.partBytes)
}

// fuzzedType makes a type of what a fuzzer says.
func fuzzedType(r *reader, depth int) *StructureType {
	t := &StructureType{Kind: StructureKind(r.byte() % 5)}
	for range r.byte() % 8 {
		f := StructureField{Name: string('a' + rune(len(t.Fields))), Kind: Kind(1 + r.byte()%25), Rank: int(r.byte() % 3), Optional: r.bool()}
		if f.Kind == KindStructure && depth < 3 {
			f.Type = fuzzedType(r, depth+1)
		}
		t.Fields = append(t.Fields, f)
	}
	return t
}

func FuzzAnswers(f *testing.F) {
	var w writer
	_ = w.value(Value{Kind: KindDouble, Array: true, Values: []any{1.0, 2.0}})
	f.Add(byte(0), w.data)
	f.Add(byte(1), []byte{1, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0})
	f.Add(byte(2), []byte{1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 7, 0, 0, 0})
	f.Add(byte(3), append([]byte{0, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 30)...))
	f.Add(byte(7), []byte{1, 2, 10, 1, 0, 21, 0, 1, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0})
	f.Add(byte(8), []byte(pressDictionary))
	f.Fuzz(func(t *testing.T, what byte, data []byte) {
		r := reader{data: data}
		switch what % 9 {
		case 0:
			v := r.value(0)
			_, _ = MethodArguments(v)
			_ = UnitName(v)
			_, _, _ = UnitRange(v)
			var w writer
			if r.err == nil && w.value(v) == nil {
				again := reader{data: w.data}
				again.value(0)
				if again.err != nil {
					t.Fatalf("%v was written as % x: %v", v, w.data, again.err)
				}
			}
		case 1:
			_, _ = r.notification(publishedItems{0, 4, func(Change) {}})
		case 2:
			_, _, _ = r.browseResult()
		case 3:
			c := &secureChannel{parts: map[uint32][]byte{}, chunks: map[uint32]int{}, receive: map[uint32]symmetricKeys{0: PolicyBasic256Sha256.deriveKeys([]byte{1}, []byte{2})}, sec: channelSecurity{policy: PolicyBasic256Sha256, mode: SecurityMode(1 + len(data)%3)}}
			_ = c.take("MSGF", data)
		case 4:
			readList(&r, 20, r.endpoint)
			r = reader{data: data}
			readList(&r, 20, r.application)
		case 6:
			if d, ok := structureDefinition(r.value(0)); ok {
				_ = d
			}
		case 7:
			kind, body := fuzzedType(&r, 0), r.bytes()
			m, err := kind.Decode(body)
			if err != nil {
				return
			}
			if again, err := kind.Encode(m); err != nil || !bytes.Equal(again, body) {
				t.Fatalf("% x was written as % x: %v", body, again, err)
			}
		case 8:
			if d, err := parseDictionary(data); err == nil {
				for name := range d.named {
					if kind, err := d.structure(name, 0); err == nil {
						_, _ = kind.Decode(data)
					}
				}
			}
		case 5:
			if n := r.nodeID(); r.err == nil {
				_ = n.String()
			}
		}
	})
}
