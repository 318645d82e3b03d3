package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPartsThatNoNodeSendsAreRefused(t *testing.T) {
	good := Part{ID: []byte("id"), Size: 10, Offset: 4, Content: []byte("xyz")}
	for name, spoil := range map[string]func(*Part){
		"no identifier":           func(p *Part) { p.ID = nil },
		"a long identifier":       func(p *Part) { p.ID = make([]byte, 33) },
		"no content":              func(p *Part) { p.Content = nil },
		"much content":            func(p *Part) { p.Content, p.Size = make([]byte, MaxPart+1), 1<<30 },
		"beyond the end":          func(p *Part) { p.Offset = 8 },
		"before the beginning":    func(p *Part) { p.Offset = -1 },
		"a topic before the last": func(p *Part) { p.Topic = "t" },
		"a last without topic":    func(p *Part) { p.Size = 7 },
	} {
		p := good
		spoil(&p)
		b, err := EncodePart(p)
		require.NoError(t, err)
		_, err = DecodePart(b)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
	b, err := EncodePart(good)
	require.NoError(t, err)
	got, err := DecodePart(b)
	require.NoError(t, err)
	require.Equal(t, good, got)
	_, err = DecodePart([]byte("rubbish"))
	require.ErrorIs(t, err, ErrMalformed)
}
