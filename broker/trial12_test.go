package broker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Refusals are their client's and the administrator's to read: not those of who has some of the nodes.
func TestTrial12WhoReadsRefusals(t *testing.T) {
	b := start(t, func(o *Options) { withUsers(o); o.Tree = newFakeTree() })
	some, all := open(t, b, "some", credentialsOf("op", "secret")), open(t, b, "all", credentialsOf("boss", "secret"))
	own := open(t, b, "a%2Bb+c", credentialsOf("view", "secret"))
	require.Equal(t, []byte{0x87}, some.subscribe("v1/refused/x", 1).ReasonCodes)
	for _, c := range []*tc{some, all} {
		c.sub("v1/refused/#", 1)
	}
	some.sub("v1/refused/some", 1)
	own.sub("v1/refused/+", 1)
	for _, topic := range []string{"v1/refused/x", "v1/refused/some", "v1/refused/a%252Bb%2Bc", "v1/refused/a%2Bb%2Bc"} {
		b.Publish(Message{Topic: topic, Payload: []byte(topic), QoS: 1})
	}
	require.Equal(t, []string{"v1/refused/x", "v1/refused/some", "v1/refused/a%252Bb%2Bc", "v1/refused/a%2Bb%2Bc"}, all.collect(4))
	require.Equal(t, []string{"v1/refused/some"}, some.collect(1))
	require.Equal(t, []string{"v1/refused/a%252Bb%2Bc"}, own.collect(1), "a+b is another client than a%2Bb")
	some.nothing()
	own.nothing()

	node := start(t, func(o *Options) { withUsers(o); o.Node, o.Tree = "a1", newFakeTree() })
	require.Equal(t, []byte{1}, open(t, node, "op", credentialsOf("op", "secret")).subscribe("v1/refused/x", 1).ReasonCodes, "all of a1's broker is op's")
}
