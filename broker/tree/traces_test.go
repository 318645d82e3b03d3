// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/topics/link"
)

const sampledParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTheTraceOfAKeyGoesWithTheMessageThatSendsIt(t *testing.T) {
	var none *tracing.Tracer
	waiting := LinkTraces{}
	waiting.Put("devices/lamp/desired/power", none.Start(sampledParent, "x", tracing.Producer))
	waiting.Put("devices/lamp/desired/power", none.Start("", "x", tracing.Producer)) // a later value has none
	waiting.Put("devices/lamp/desired/brightness", none.Start(sampledParent, "x", tracing.Producer))
	sent := waiting.Take([]link.Entry{{Key: "devices/lamp/desired/power"}, {Key: "devices/lamp/desired/brightness"}, {Key: "status"}})
	require.Equal(t, map[string]string{"devices/lamp/desired/brightness": sampledParent}, ParseTraces(sent))
	require.Empty(t, waiting.Take([]link.Entry{{Key: "devices/lamp/desired/brightness"}}), "it is sent once")
}

func TestTracesOfALinkAreBounded(t *testing.T) {
	var none *tracing.Tracer
	waiting, entries := LinkTraces{}, []link.Entry{}
	for i := range maxLinkTraces + 1 {
		entries = append(entries, link.Entry{Key: fmt.Sprint("k", i)})
		waiting.Put(entries[i].Key, none.Start(sampledParent, "x", tracing.Producer))
	}
	require.Len(t, waiting, maxLinkTraces)
	require.Len(t, waiting.Take(entries), maxMessageTraces)
	require.Empty(t, waiting)
}

func TestWhatIsNoTraceOfAKeyIsIgnored(t *testing.T) {
	require.Empty(t, ParseTraces([]string{"", sampledParent, sampledParent + " ", "x " + sampledParent, " key"}))
	many := make([]string, 1000)
	for i := range many {
		many[i] = fmt.Sprint(sampledParent, " k", i)
	}
	require.Len(t, ParseTraces(many), maxMessageTraces)
}

func TestAMessageOfATraceSaysSo(t *testing.T) {
	var none *tracing.Tracer
	var spans Spans
	require.Nil(t, spans.Add("a", tracing.Span{}))
	spans = spans.Add("a", none.Start(sampledParent, "x", tracing.Consumer))
	require.Equal(t, []broker.UserProperty{{Key: "ver", Value: "1"}, {Key: "traceparent", Value: sampledParent}},
		spans.Mark(broker.Message{Topic: "a", Props: broker.Properties{User: []broker.UserProperty{{Key: "ver", Value: "1"}}}}).Props.User)
	require.Empty(t, spans.Mark(broker.Message{Topic: "b"}).Props.User)
}
