// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// exampleMessages has one message of each kind; their encodings are in testdata.
func exampleMessages() map[string]Message {
	d := Digest{0: 1, 15: 255}
	l := Lineage{N: 3, Nonce: 0xfeedface}
	e := Entry{Key: "devices/lamp/reported/power", Seq: 8, Ver: 42, TS: 1795000000123, Origin: "mapper-1", Value: []byte("ON"), Meta: Meta{For: 7}}
	gone := Entry{Key: "devices/lamp/override/power", Seq: 9, Ver: 3, TS: 1795000000124, Origin: "op", Deleted: true}
	return map[string]Message{
		"hello":    {V: Version, Map: Up, Type: TypeHello, N: 5, Lineage: l, Seq: 9, Digest: &d, Keys: 3, Bytes: 90},
		"seen-no":  {V: Version, Map: Up, Type: TypeSeen, N: 5, Lineage: l, Applied: 7, Digest: &d, Refused: "3 keys, at most 2 are taken"},
		"seen":     {V: Version, Map: Up, Type: TypeSeen, N: 5, Lineage: l, Applied: 7, Digest: &d},
		"seen-new": {V: Version, Map: Down, Type: TypeSeen, N: 5, Digest: &Digest{}},
		"seen-mid": {V: Version, Map: Down, Type: TypeSeen, N: 5, Lineage: l, Applied: 7, ID: 11, Part: 2, Digest: &d},
		"adopt":    {V: Version, Map: Down, Type: TypeAdopt, N: 5, Lineage: l, Upto: 9, Digest: &d},
		"delta":    {V: Version, Map: Up, Type: TypeDelta, N: 5, Lineage: l, Base: 7, Upto: 9, Entries: []Entry{e, gone}, Digest: &d},
		"full":     {V: Version, Map: Down, Type: TypeFull, N: 5, Lineage: l, Upto: 9, ID: 11, Part: 1, Parts: 2, Entries: []Entry{e}, Digest: &d},
	}
}

var updateGolden = flag.Bool("update", false, "write the golden files")

func TestGolden(t *testing.T) {
	for name, m := range exampleMessages() {
		b, err := Encode(m)
		require.NoError(t, err)
		file := filepath.Join("testdata", name+".hex")
		if *updateGolden {
			require.NoError(t, os.WriteFile(file, []byte(hex.EncodeToString(b)+"\n"), 0o600))
		}
		golden, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, strings.TrimSpace(string(golden)), hex.EncodeToString(b), name)
		back, err := Decode(b)
		require.NoError(t, err, name)
		for i := range back.Entries {
			if len(back.Entries[i].Value) == 0 {
				back.Entries[i].Value = nil
			}
		}
		require.Equal(t, m, back)
	}
}

func TestDecodeRefuses(t *testing.T) {
	all := exampleMessages()
	bad := map[string]func() Message{
		"version":          func() Message { m := all["hello"]; m.V = 2; return m },
		"map":              func() Message { m := all["hello"]; m.Map = 3; return m },
		"type":             func() Message { m := all["hello"]; m.Type = 6; return m },
		"no type":          func() Message { m := all["hello"]; m.Type = 0; return m },
		"lineage 0":        func() Message { m := all["delta"]; m.Lineage.N = 0; return m },
		"no digest":        func() Message { m := all["seen"]; m.Digest = nil; return m },
		"entries in HELLO": func() Message { m := all["hello"]; m.Entries = all["full"].Entries; return m },
		"empty range":      func() Message { m := all["delta"]; m.Base = 9; return m },
		"entry beyond":     func() Message { m := all["delta"]; m.Upto = 8; return m },
		"entry below":      func() Message { m := all["delta"]; m.Base = 8; return m },
		"order":            func() Message { m := all["delta"]; m.Entries = []Entry{m.Entries[1], m.Entries[0]}; return m },
		"part":             func() Message { m := all["full"]; m.Part = 2; return m },
		"parts":            func() Message { m := all["full"]; m.Parts = MaxParts + 1; return m },
		"id":               func() Message { m := all["full"]; m.ID = 0; return m },
		"tombstone in FULL": func() Message {
			m := all["full"]
			m.Entries = []Entry{{Key: "k", Seq: 1, Deleted: true}}
			return m
		},
		"tombstone's value": func() Message {
			m := all["delta"]
			m.Entries = []Entry{{Key: "k", Seq: 8, Deleted: true, Value: []byte("v")}}
			return m
		},
		"value": func() Message {
			m := all["delta"]
			m.Entries = []Entry{{Key: "k", Seq: 8, Value: make([]byte, MaxValue+1)}}
			return m
		},
		"key": func() Message {
			m := all["delta"]
			m.Entries = []Entry{{Key: strings.Repeat("k", MaxKey+1), Seq: 8}}
			return m
		},
		"refusal":        func() Message { m := all["seen"]; m.Refused = strings.Repeat("r", maxRefusal+1); return m },
		"refusing owner": func() Message { m := all["delta"]; m.Refused = "no"; return m },
		"no key":         func() Message { m := all["delta"]; m.Entries = []Entry{{Seq: 8}}; return m },
		"origin": func() Message {
			m := all["delta"]
			m.Entries = []Entry{{Key: "k", Seq: 8, Origin: strings.Repeat("o", MaxOrigin+1)}}
			return m
		},
	}
	for name, make := range bad {
		b, err := Encode(make())
		require.NoError(t, err, name)
		_, err = Decode(b)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
}

func TestDecodeRefusesBytes(t *testing.T) {
	good, err := Encode(exampleMessages()["seen"])
	require.NoError(t, err)
	for i := range good {
		_, err := Decode(good[:i])
		require.ErrorIs(t, err, ErrMalformed)
	}
	shortDigest := bytes.Replace(good, append([]byte{0x50, 1}, make([]byte, 14)...), append([]byte{0x4f, 1}, make([]byte, 13)...), 1)
	extraField := append([]byte{good[0] + 1}, append(slices.Clone(good[1:]), 0x18, 40, 1)...)
	for name, b := range map[string][]byte{
		"short digest": shortDigest, "unknown field": extraField, "trailing": append(slices.Clone(good), 0),
		"too long": make([]byte, MaxMessage+1), "deep": bytes.Repeat([]byte{0x81}, 1000), "huge array": {0xa1, 0x0c, 0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	} {
		_, err := Decode(b)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
}

// FuzzDecode: whatever is decoded can be encoded again, and no machine, in
// whatever state, comes to harm by it.
func FuzzDecode(f *testing.F) {
	for _, m := range exampleMessages() {
		b, err := Encode(m)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Encode(m)
		if err == nil { // a wasteful encoding may have become longer, never another message
			back, err := Decode(again)
			require.NoError(t, err)
			final, err := Encode(back)
			require.NoError(t, err)
			require.Equal(t, again, final)
		}
		p := newPair(t)
		p.put("devices/lamp/reported/power", "OFF")
		p.connect()
		p.o.connection.n = m.N
		p.r.Step(m)
		_ = p.o.Step(m)
		p.run()
		p.connect().run()
		p.requireInStep()
	})
}

// FuzzStored: what a store gives back is an entry or an error.
func FuzzStored(f *testing.F) {
	for _, m := range exampleMessages() {
		for _, e := range m.Entries {
			f.Add(AppendEntry(nil, e))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := ParseEntry("k", b); err == nil {
			back, err := ParseEntry("k", AppendEntry(nil, e))
			require.NoError(t, err)
			require.Equal(t, e, back)
		}
		var s MapState
		if s.UnmarshalBinary(b) == nil {
			c, err := s.MarshalBinary()
			require.NoError(t, err)
			var back MapState
			require.NoError(t, back.UnmarshalBinary(c))
			require.Equal(t, s, back)
		}
	})
}

func TestStored(t *testing.T) {
	entries := []Entry{
		{Key: "devices/lamp/reported/power", Seq: 1, Ver: 2, TS: 1_700_000_000_000, Origin: "mapper", Value: []byte("ON"), Meta: Meta{For: 7}},
		{Key: "k", Seq: 1 << 63, Ver: 1<<64 - 1, TS: -1, Value: []byte{}, Meta: Meta{BasedOn: 1, Until: 1 << 62}},
		{Key: "k", Deleted: true, Seq: 3, Ver: 4},
	}
	for _, m := range exampleMessages() {
		entries = append(entries, m.Entries...)
	}
	for _, e := range entries {
		b := AppendEntry(nil, e)
		back, err := ParseEntry(e.Key, b)
		require.NoError(t, err)
		require.Equal(t, e, back)
		for i := range len(b) - len(e.Value) {
			_, err := ParseEntry(e.Key, b[:i])
			require.Error(t, err, "cut off at %d", i)
		}
		b[len(b)-1]++ // it keeps nothing of the bytes
		require.Equal(t, e, back)
	}
	s := MapState{Lineage: Lineage{N: 4, Nonce: 1<<64 - 1}, Seq: 9, Acked: 3, GCFloor: 2, VerFloor: 6, Applied: 5}
	b, err := s.MarshalBinary()
	require.NoError(t, err)
	var back MapState
	require.NoError(t, back.UnmarshalBinary(b))
	require.Equal(t, s, back)
	require.Error(t, back.UnmarshalBinary(b[:len(b)-1]))
}

func BenchmarkStoredEntry(b *testing.B) {
	e := Entry{Key: "devices/lamp/reported/power", Seq: 300, Ver: 2, TS: 1_700_000_000_000, Origin: "mapper", Value: []byte("21.5")}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseEntry(e.Key, AppendEntry(nil, e)); err != nil {
			b.Fatal(err)
		}
	}
}
