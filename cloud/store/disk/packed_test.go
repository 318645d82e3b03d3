// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"
	"strings"
	"testing"
	"unique"

	"github.com/stretchr/testify/require"
)

func FuzzAPackedTextIsTheTextAgain(f *testing.F) {
	for _, text := range []string{
		"", "0", "00", "007", "a", "1", "12a034", `{"at":"2026-11-27T21:03:00.050Z","v":-1.5e-07}`, "999999999999999999", "1000000000000000000",
		"12345678901234567890123", strings.Repeat("0", 40), "a\x00b1", "1\x00", "\xff\xfe3",
		"2026-11-27T21:03:00Z2026-11-27T21:03:00Z", "2026-11-27T21:03:00.050Z 2026-11-27T21:03:00Z 2026-11-27T21:03:00.049Z", "2026-02-29T21:03:00Z", "2026-11-27T24:00:00Z",
		"2026-11-27T23:59:59.999Z,2026-11-28T00:00:00.000Z,1969-12-31T23:59:59.999Z,1969-12-31T00:00:00Z,0000-01-01T00:00:00Z,9999-12-31T23:59:59Z",
		"2026-11-27T21:03:00,050Z", "2026-11-27T21:03:60Z", "12026-11-27T21:03:00Z", "2026-11-27T21:03:00.05Z", "2026-11-27T21:03:00", "2026-11-27T21:03:00+01:00",
		"1234567890123456782026-11-27T21:03:00Z",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, buffer := packText([]byte(text)), []byte("2026-11-27")
		first, second := p.unpackInto(&buffer), p.unpackInto(&buffer)
		require.Equal(t, []string{text, text, text, "2026-11-27" + text + text}, []string{string(p.unpack()), string(first), string(second), string(buffer)})
	})
}

func TestTextsThatDifferInNumbersShareTheirForm(t *testing.T) {
	status := func(n int) []byte {
		return fmt.Appendf(nil, `{"state":"online","lastSeen":"2026-11-27T21:%02d:%02d.%03dZ","twin":[{"name":"p0","reported":{"value":"%d"}}]}`, n%60, n%60, n%1000, n)
	}
	a, b := packText(status(1)), packText(status(4711))
	require.Equal(t, a.form, b.form)
	require.Less(t, len(a.numbers), len(status(1))/8)
	require.GreaterOrEqual(t, a.size(), len(status(1))*8/10, "lists that are read page by page are dropped for too much memory, which a text that is alone takes")
	require.Zero(t, packText(nil).size())
	require.NotEqual(t, a.unpack(), b.unpack())
	require.Equal(t, unique.Handle[string]{}, packText(nil).form)
}

func BenchmarkPackedText(b *testing.B) {
	text := []byte(strings.Repeat(`{"name":"p0","reported":{"value":"21.5","metadata":{"timestamp":"2026-11-27T21:03:00.050Z","version":4711,"origin":"mapper-modbus"}}},`, 10))
	p := packText(text)
	b.Run("pack", func(b *testing.B) {
		for b.Loop() {
			packText(text)
		}
	})
	b.Run("unpack", func(b *testing.B) {
		for b.Loop() {
			p.unpack()
		}
	})
}
