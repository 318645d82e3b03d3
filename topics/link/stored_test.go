package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStoredEntries(t *testing.T) {
	for _, e := range []Entry{
		{Key: "devices/lamp/reported/power", Seq: 1, Ver: 2, TS: 1_700_000_000_000, Origin: "mapper", Value: []byte("ON"), Meta: Meta{For: 7}},
		{Key: "k", Seq: 1 << 63, Ver: 1<<64 - 1, TS: -1, Value: []byte{}, Meta: Meta{BasedOn: 1, Until: 1 << 62}},
		{Key: "k", Deleted: true, Seq: 3, Ver: 4},
	} {
		got, err := ParseEntry(e.Key, AppendEntry(nil, e))
		require.NoError(t, err)
		require.Equal(t, e, got)
		b := AppendEntry(nil, e)
		for cut := range len(b) - len(e.Value) {
			_, err := ParseEntry(e.Key, b[:cut])
			require.Error(t, err, "cut at %d", cut)
		}
	}
}

func FuzzParseEntry(f *testing.F) {
	f.Add(AppendEntry(nil, Entry{Seq: 300, Ver: 2, TS: 1_700_000_000_000, Origin: "mapper", Value: []byte("ON")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := ParseEntry("k", b)
		if err != nil {
			return
		}
		again, err := ParseEntry("k", AppendEntry(nil, e))
		require.NoError(t, err)
		require.Equal(t, e, again)
	})
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

// TestTheLastLineage: an owner goes one beyond what a replica says it has, which
// must still be a lineage.
func TestTheLastLineage(t *testing.T) {
	seen := Message{V: Version, Map: Up, Type: Seen, N: 1, Lineage: Lineage{N: maxLineage, Nonce: 1}, Digest: new(Digest)}
	o := NewOwner(Up, func() uint64 { return 7 })
	o.Connect(1)
	require.ErrorIs(t, o.Step(seen), ErrMalformed)
	seen.Lineage.N--
	require.NoError(t, o.Step(seen))
	for _, m := range o.Messages() {
		b, err := Encode(m)
		require.NoError(t, err)
		_, err = Decode(b)
		require.NoError(t, err)
	}
}
