// SPDX-License-Identifier: Apache-2.0

package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPartsThatNoNodeSendsAreRefused(t *testing.T) {
	good := MessagePart{ID: []byte("id"), Size: 10, Offset: 4, Content: []byte("xyz")}
	for name, spoil := range map[string]func(*MessagePart){
		"no identifier":           func(p *MessagePart) { p.ID = nil },
		"a long identifier":       func(p *MessagePart) { p.ID = make([]byte, 33) },
		"no content":              func(p *MessagePart) { p.Content = nil },
		"much content":            func(p *MessagePart) { p.Content, p.Size = make([]byte, MaxPart+1), 1<<30 },
		"beyond the end":          func(p *MessagePart) { p.Offset = 8 },
		"before the beginning":    func(p *MessagePart) { p.Offset = -1 },
		"a topic before the last": func(p *MessagePart) { p.Topic = "t" },
		"a last without topic":    func(p *MessagePart) { p.Size = 7 },
	} {
		p := good
		spoil(&p)
		b, err := EncodeMessagePart(p)
		require.NoError(t, err)
		_, err = DecodeMessagePart(b)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
	b, err := EncodeMessagePart(good)
	require.NoError(t, err)
	got, err := DecodeMessagePart(b)
	require.NoError(t, err)
	require.Equal(t, good, got)
	_, err = DecodeMessagePart([]byte("rubbish"))
	require.ErrorIs(t, err, ErrMalformed)
}
