// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// TestARefusedReportIsSentAgain: at growing intervals, with the time of the attempt, because a clock may have been wrong.
func TestARefusedReportIsSentAgain(t *testing.T) {
	var sent []client.Message
	var answers []func(error)
	o := newOutbox(func(m client.Message, done func(error)) { sent, answers = append(sent, m), append(answers, done) }, zerolog.Nop())
	now := time.UnixMilli(1_700_000_000_000)
	o.now = func() time.Time { return now }
	ahead := resource.FormatTime(now.Add(time.Hour))
	o.connected()
	o.set(client.Message{Topic: "level", Payload: []byte("20"), User: []client.UserProperty{{Key: "ts", Value: ahead}, {Key: "for", Value: "3"}}})
	attempts := func() int {
		before := len(sent)
		for range 120 {
			now = now.Add(time.Second)
			o.retry(true)
			if len(sent) > len(answers)-1 && len(sent) > before {
				before = len(sent)
				answers[len(answers)-1](&client.Refused{Code: 0x99})
			}
		}
		return len(sent)
	}
	answers[0](&client.Refused{Code: 0x99})
	got := attempts()
	require.Greater(t, got, 6, "in two minutes")
	require.Less(t, got, 12, "less and less often")
	last := sent[len(sent)-1]
	require.Equal(t, "20", string(last.Payload))
	require.Equal(t, "3", last.Property("for"))
	at, err := resource.ParseTime(last.Property("ts"))
	require.NoError(t, err)
	require.WithinDuration(t, now, at, refusedRetry.Max)

	o.connected()
	require.Len(t, sent, got+1, "a new connection tries at once")
	answers[got](nil)
	require.Len(t, sent, got+1)
	now = now.Add(time.Hour)
	o.retry(true)
	require.Len(t, sent, got+1, "it was taken")
	o.set(client.Message{Topic: "level", Payload: []byte("21"), User: []client.UserProperty{{Key: "ts", Value: ahead}}})
	require.Equal(t, ahead, sent[len(sent)-1].Property("ts"), "what was not refused is sent as it was stamped")
}

// TestARefusedReportGivesWayToItsSuccessor: the refused value is not sent again beside it.
func TestARefusedReportGivesWayToItsSuccessor(t *testing.T) {
	var sent []string
	var answers []func(error)
	o := newOutbox(func(m client.Message, done func(error)) {
		sent, answers = append(sent, string(m.Payload)), append(answers, done)
	}, zerolog.Nop())
	now := time.UnixMilli(1_700_000_000_000)
	o.now = func() time.Time { return now }
	o.connected()
	o.set(client.Message{Topic: "level", Payload: []byte("20")})
	answers[0](&client.Refused{Code: 0x99})
	o.set(client.Message{Topic: "level", Payload: []byte("21")})
	answers[1](nil)
	o.set(client.Message{Topic: "gone", Payload: []byte("1")})
	answers[2](&client.Refused{Code: 0x97})
	o.remove("gone")
	now = now.Add(time.Hour)
	o.retry(true)
	require.Equal(t, []string{"20", "21", "1"}, sent)
}

// TestAValueBeyondTheLimitIsAReadProblem: no broker would ever take it.
func TestAValueBeyondTheLimitIsAReadProblem(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) {
		m.Spec.Properties = append(m.Spec.Properties, resource.Property{Name: "log", Type: resource.TypeString})
		m.Spec.PropertyVisitors[0].Visitors = append(m.Spec.PropertyVisitors[0].Visitors, resource.Visitor{PropertyName: "log"})
	}))
	d.toys["lamp"].set("log", string(make([]byte, 128<<10+1)))
	n.run(d, nil)
	n.eventually("devices/lamp/reported/temp", "20")
	require.Eventually(t, func() bool {
		text, _ := n.at("devices/lamp/problem/log")
		why, err := resource.ParseProblem([]byte(text))
		return err == nil && why.Code == resource.ValueUnknown
	}, testTimeout, pollInterval)
	require.Empty(t, n.published("devices/lamp/reported/log"))
	d.toys["lamp"].set("log", "short")
	n.eventually("devices/lamp/reported/log", "short")
}

// TestAMessageThatIsTooLargeIsSentOnce, and what it was is told: no connection and no time makes it smaller.
func TestAMessageThatIsTooLargeIsSentOnce(t *testing.T) {
	var sent []string
	o := newOutbox(func(m client.Message, done func(error)) {
		sent = append(sent, string(m.Payload))
		if len(m.Payload) > 5 {
			done(&client.Refused{Code: 0x95})
			return
		}
		done(nil)
	}, zerolog.Nop())
	var told []string
	o.tooLarge = func(m client.Message, _ error) { told = append(told, m.Topic) }
	now := time.UnixMilli(1_700_000_000_000)
	o.now = func() time.Time { return now }
	o.connected()
	o.set(client.Message{Topic: "picture", Payload: []byte("large picture")})
	now = now.Add(time.Hour)
	o.retry(true)
	o.connected()
	require.Equal(t, []string{"large picture"}, sent)
	require.Equal(t, []string{"picture"}, told)
	o.set(client.Message{Topic: "picture", Payload: []byte("small")})
	o.connected()
	require.Equal(t, []string{"large picture", "small", "small"}, sent)
}

func TestAValueThatTheBrokerDoesNotTakeIsSaidOnce(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(func(m *resource.DeviceModel) {
		m.Spec.Properties = append(m.Spec.Properties, resource.Property{Name: "log", Type: resource.TypeString})
		m.Spec.PropertyVisitors[0].Visitors = append(m.Spec.PropertyVisitors[0].Visitors, resource.Visitor{PropertyName: "log"})
	}))
	n.stop()
	n.limits.Packet = 16 << 10
	n.start()
	d.toys["lamp"].set("log", strings.Repeat("a long text of the device ", 1000))
	n.run(d, nil)
	n.hasProblem("devices/lamp/problem/log", resource.ValueUnknown)
	d.toys["lamp"].set("temp", "42")
	n.eventually("devices/lamp/reported/temp", "42")
	require.Len(t, n.published("devices/lamp/problem/log"), 1)
	require.Contains(t, problemOf(n, "devices/lamp/problem/log").Message, "16384")
	d.toys["lamp"].set("log", "short")
	n.eventually("devices/lamp/reported/log", "short")
}
